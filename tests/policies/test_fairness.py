"""Fair shares among tenants: the order by hand. Bounds are in `test_fair_bounds`."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from cadenza.policies.builtin import FairShare, PrefixFair
from cadenza.policies.profile import Profile
from cadenza.policies.tenancy import ahead
from cadenza.testing import Driver
from tests.policies.views import STEP, order_of, whole


def admit(policy: FairShare | PrefixFair, **values: list[int]) -> None:
    policy.on_admitted(whole(**values), STEP)


class TestAhead:
    def test_costs_of_the_own_tenant_in_the_given_order(self):
        tenants = np.array([1, 2, 1, 1, 2])
        costs = np.array([10, 20, 30, 40, 50])

        left = ahead(tenants, np.array([3, 0, 4, 2, 1]), costs)

        assert left.tolist() == [40, 50, 50, 0, 0]

    @pytest.mark.parametrize("most", [3, 100_000])
    def test_it_is_what_a_loop_finds(self, most: int):
        rng = np.random.default_rng(3)
        tenants, costs = rng.integers(0, most, 200), rng.integers(0, 50, 200)
        order = rng.permutation(200)
        sums: Counter[int] = Counter()
        expected = np.zeros(200, dtype=np.int64)
        for index in order:
            expected[index] = sums[tenants[index]]
            sums[tenants[index]] += costs[index]

        assert ahead(tenants, order, costs).tolist() == expected.tolist()

    def test_of_nobody_there_is_nothing(self):
        nothing = np.empty(0, dtype=np.int64)

        assert ahead(nothing, nothing.astype(np.intp), nothing).tolist() == []


class TestFairShare:
    def test_tenants_take_turns_by_the_cost_of_prompts(self):
        waiting = whole(tenant=[1, 1, 1, 2, 2], prompt_tokens=[10, 10, 10, 25, 5])

        scores = FairShare().order_admissions(waiting, STEP)

        assert scores.tolist() == [0, 10, 20, 0, 25]
        assert order_of(scores, waiting) == [0, 3, 1, 2, 4]

    def test_it_is_the_loop_of_the_paper(self):
        rng = np.random.default_rng(5)
        tenants, prompts = rng.integers(0, 4, 60), rng.integers(1, 90, 60)
        waiting = whole(tenant=tenants.tolist(), prompt_tokens=prompts.tolist())
        counters = dict.fromkeys(range(4), 0.0)
        queues = {tenant: (tenants == tenant).nonzero()[0].tolist() for tenant in range(4)}
        loop = []
        while any(queues.values()):
            active = [tenant for tenant in counters if queues[tenant]]
            # ties go by arrival
            tenant = min(active, key=lambda each: (counters[each], queues[each][0]))
            loop.append(queues[tenant].pop(0))
            counters[tenant] += prompts[loop[-1]]

        assert order_of(FairShare().order_admissions(waiting, STEP), waiting) == loop

    def test_prompts_are_charged_once_and_tokens_by_twos(self):
        policy, both = FairShare(), whole(tenant=[1, 2])
        policy.order_admissions(both, STEP)
        admit(policy, tenant=[1, 1], prompt_tokens=[7, 9], preemptions=[0, 1])
        policy.on_generated(whole(tenant=[1, 1, 2]), STEP)

        assert policy.order_admissions(both, STEP).tolist() == [7 + 2 * 2, 2]

    def test_who_comes_back_from_a_preemption_costs_those_behind_nothing(self):
        waiting = whole(tenant=[1, 1], admission=[4, -1], prompt_tokens=[50, 10])

        assert FairShare().order_admissions(waiting, STEP).tolist() == [0, 0]

    def test_an_idle_tenant_saves_nothing_up(self):
        policy = FairShare()
        for _ in range(10):
            policy.order_admissions(whole(tenant=[1]), STEP)
            admit(policy, tenant=[1], prompt_tokens=[100])
        late = whole(tenant=[1, 1, 2, 2], prompt_tokens=[100] * 4)

        # not ten turns: the newcomer begins where the other is
        assert order_of(policy.order_admissions(late, STEP), late) == [0, 2, 1, 3]

    def test_what_was_generated_while_nobody_waited_is_not_held_against_its_tenant(self):
        policy = FairShare()
        policy.order_admissions(whole(tenant=[1]), STEP)
        admit(policy, tenant=[1], prompt_tokens=[10])
        for _ in range(1000):
            policy.on_generated(whole(tenant=[1]), STEP)
        policy.order_admissions(whole(tenant=[2]), STEP)
        both = whole(tenant=[1, 2])

        assert policy.order_admissions(both, STEP).tolist() == [2010, 2010]

    def test_a_tenant_that_was_ahead_stays_ahead_when_it_returns(self):
        policy, both = FairShare(), whole(tenant=[1, 2])
        policy.order_admissions(both, STEP)
        admit(policy, tenant=[1], prompt_tokens=[500])
        policy.order_admissions(whole(tenant=[2]), STEP)

        assert policy.order_admissions(both, STEP).tolist() == [500, 0]

    def test_any_number_of_tenants(self):
        waiting = whole(tenant=[5000, 1, 70])
        policy = FairShare()
        policy.order_admissions(waiting, STEP)
        admit(policy, tenant=[70_000, 5000], prompt_tokens=[1, 3])

        assert policy.order_admissions(waiting, STEP).tolist() == [3, 0, 0]

    def test_options_are_checked(self):
        with pytest.raises(ValueError, match="weights"):
            FairShare.Options(output_weight=0)


class TestPrefixFair:
    def test_prefixes_come_first_within_a_quantum(self):
        waiting = whole(
            tenant=[1, 1, 2, 2], prompt_tokens=[60, 60, 60, 60], cached_tokens=[0, 50, 20, 40]
        )

        assert order_of(PrefixFair().order_admissions(waiting, STEP), waiting) == [1, 3, 2, 0]

    def test_a_used_up_quantum_lets_the_others_go_first(self):
        policy = PrefixFair(PrefixFair.Options(quantum=30))
        waiting = whole(
            tenant=[1, 1, 1, 2], prompt_tokens=[50, 50, 50, 50], cached_tokens=[30, 30, 30, 0]
        )

        # 20 and 20 are the first quantum and a half; the third waits for the other tenant's turn
        assert order_of(policy.order_admissions(waiting, STEP), waiting) == [0, 1, 3, 2]

    def test_turns_are_counted_from_the_least_served(self):
        policy = PrefixFair(PrefixFair.Options(quantum=100))
        both = whole(tenant=[1, 2], cached_tokens=[0, 0])
        policy.order_admissions(both, STEP)
        admit(policy, tenant=[1, 2], prompt_tokens=[350, 120])

        assert (policy.order_admissions(both, STEP) // 2**32).tolist() == [2, 0]

    def test_hits_are_not_charged(self):
        policy = PrefixFair(PrefixFair.Options(quantum=10))
        both = whole(tenant=[1, 2])
        policy.order_admissions(both, STEP)
        running = {"tenant": [1, 2], "prompt_tokens": [100, 100]}
        admit(policy, computed_tokens=[95, 20], **running)
        policy.on_generated(whole(tenant=[2]), STEP)

        # 5 and 82
        assert (policy.order_admissions(both, STEP) // 2**32).tolist() == [0, 8]

    def test_an_idle_tenant_saves_up_less_than_a_quantum(self):
        policy = PrefixFair(PrefixFair.Options(quantum=100))
        policy.order_admissions(whole(tenant=[1]), STEP)
        admit(policy, tenant=[1], prompt_tokens=[1000])
        policy.order_admissions(whole(tenant=[1]), STEP)
        late = whole(tenant=[2] * 5 + [1], prompt_tokens=[60] * 6)

        assert order_of(policy.order_admissions(late, STEP), late) == [0, 1, 5, 2, 3, 4]


def test_a_resumed_request_pays_for_what_it_computes_again_under_prefix_fair():
    policy = PrefixFair(PrefixFair.Options(quantum=10))
    both = whole(tenant=[1, 2])
    policy.order_admissions(both, STEP)
    admit(policy, tenant=[1], prompt_tokens=[30], preemptions=[1])

    assert (policy.order_admissions(both, replace(STEP, step_id=1)) // 2**32).tolist() == [3, 0]


def overtaken(order: str, **options: dict[str, float]) -> int:
    """How often an early request was overtaken by later ones of another tenant."""
    driver = Driver(Profile({"order_admissions": order}, options=options), max_num_seqs=1)
    for request in range(3):
        driver.add(request, [request + 1] * 12, 1, tenant="many")
    for request in range(3, 6):
        driver.add(request, [request + 1] * 2, 1, tenant="few")
    for _ in range(5):
        driver.step()
    table = driver.scheduler._stores.table
    assert 2 not in driver.admitted
    return int(table.overtakes[table.row_of(2)])


def test_under_a_fair_order_only_the_own_tenant_overtakes():
    assert overtaken("shortest-prefill") == 3
    assert overtaken("fair-share") == 0
    assert overtaken("prefix-fair", **{"prefix-fair": {"quantum": 10}}) == 0


def served_first(quantum: int) -> int:
    """What a tenant of short requests, all in the cache, is served before one that is not."""
    options = {"prefix-fair": {"quantum": quantum}}
    driver = Driver(
        Profile({"order_admissions": "prefix-fair"}, options=options), max_num_seqs=1, num_blocks=64
    )
    shared = [1] * 16
    driver.add(0, [*shared, 2], 1, tenant="cached")
    driver.run()
    driver.add(1, [3] * 17, 1, tenant="other")
    for request in range(2, quantum):
        driver.add(request, [*shared, request], 1, tenant="cached")
        driver.step()
        if 1 in driver.admitted:
            break
    return (1 + 2) * (len(driver.admitted) - 2)  # a token computed, and one generated


@pytest.mark.parametrize("quantum", [60, 600])
def test_who_finds_nothing_in_the_cache_waits_until_the_others_have_used_up_a_quantum(quantum: int):
    assert quantum - 40 <= served_first(quantum) <= quantum + 3
