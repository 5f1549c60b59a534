"""Victims: who they are, whether they are swapped or dropped, and what comes back with them."""

from collections import Counter

import numpy as np
import pytest

from cadenza.policies import PreemptionCosts, RequestColumns, StepView, hookimpl
from cadenza.policies.builtin import BUILTIN
from cadenza.policies.profile import Profile
from cadenza.scheduler.costs import CostModel
from cadenza.scheduler.decisions import Cause, HostCopyDropped, Preempted, Resumed
from cadenza.testing import Driver, oracle

GREEDY = {"reserve_blocks": "none"}


class Gate:
    """Keeps the requests in `closed` out while anything else runs."""

    closed: frozenset[int] = frozenset()

    @hookimpl
    def order_admissions(self, waiting: RequestColumns, step: StepView) -> np.ndarray:
        shut = np.isin(waiting.request, list(self.closed))
        return np.where(shut, np.inf, waiting.arrival.astype(float))


@pytest.fixture(autouse=True)
def _open_gate():
    yield
    Gate.closed = frozenset()


def swapping(**limits: object) -> Driver:
    """A driver whose victims are swapped, with a bystander, request 0, that always runs."""
    Gate.closed = frozenset()
    chosen = {**GREEDY, "choose_preemption": "swap", "order_admissions": "gate"}
    profile = Profile(chosen, {**BUILTIN, "gate": Gate})
    driver = Driver(profile, **{"num_host_blocks": 8, **limits})
    driver.add(0, [900], max_tokens=60)
    return driver


def steps(driver: Driver, num: int) -> None:
    for _ in range(num):
        driver.step()


def evict(driver: Driver, request: int, *, swap: bool = True) -> None:
    """Preempt a request in the next step, and keep it out until the gate opens again."""
    Gate.closed = frozenset({request})
    driver.scheduler.preempt(request, swap=swap)
    driver.step()


def pairs(copies: np.ndarray) -> list[tuple[int, ...]]:
    return [tuple(pair) for pair in copies.tolist()]


def table_of(driver: Driver, request: int) -> list[int]:
    """All blocks that a planned request uses."""
    plan = driver.plan
    assert plan is not None
    row = plan.requests.tolist().index(request)
    num = -(-int(plan.num_context[row] + plan.num_new[row]) // 4)
    return plan.layout().block_tables[row, :num].tolist()


def last(driver: Driver, request: int, kind: type) -> object:
    found = [each for each in driver.scheduler.timeline(request) if isinstance(each, kind)]
    assert found, f"no {kind.__name__} of request {request}"
    return found[-1]


def test_blocks_held_alone_and_the_partial_tail_go_to_the_host():
    driver = swapping()
    driver.add(1, list(range(1, 7)), max_tokens=8)
    steps(driver, 3)
    held = table_of(driver, 1)
    assert len(held) == 2
    evict(driver, 1)

    assert driver.plan is not None
    out = pairs(driver.plan.copies.swap_out)
    assert [device for device, _ in out] == held
    statistics = driver.scheduler.statistics()
    assert (statistics.swapped, statistics.swaps, statistics.preemptions) == (1, 1, 1)
    assert statistics.free_host_blocks == 8 - 2
    record = last(driver, 1, Preempted)
    assert isinstance(record, Preempted)
    assert (record.cause, record.swapped) == (Cause.FORCED, True)

    driver.scheduler.reset_prefix_cache()
    Gate.closed = frozenset()
    driver.step()
    assert driver.plan is not None
    back = pairs(driver.plan.copies.swap_in)
    assert [host for host, _ in back] == [host for _, host in out]
    assert [device for _, device in back] == table_of(driver, 1)[:2]
    driver.run()
    assert driver.tokens[1] == oracle(list(range(1, 7)), 8)
    assert driver.scheduler.statistics().recomputed_tokens == 0


@pytest.mark.parametrize("computed", [5, 6, 7, 8, 9])
def test_a_swapped_row_goes_on_where_it_was(computed: int):
    """Nothing is computed twice, wherever in a block it was interrupted."""
    prompt = [7, 8, 9]
    driver = swapping()
    driver.add(1, prompt, max_tokens=12)
    steps(driver, 1 + computed - 3)
    evict(driver, 1)
    driver.step()
    assert driver.plan is not None
    assert driver.plan.requests.tolist() == [0]
    driver.scheduler.reset_prefix_cache()
    Gate.closed = frozenset()

    driver.step()

    row = driver.plan.requests.tolist().index(1)
    assert driver.plan.num_context[row] == computed
    assert driver.plan.num_new[row] == 1
    record = last(driver, 1, Resumed)
    assert isinstance(record, Resumed)
    assert (record.cached_tokens, record.from_host) == (computed, True)
    assert driver.cached[1] == computed
    driver.run()
    assert driver.tokens[1] == oracle(prompt, 12)


def sharing(**limits: object) -> tuple[Driver, list[int]]:
    """Requests 1 and 2 share two blocks of their prompts; 2 has just been swapped."""
    prompt = list(range(1, 10))
    driver = swapping(**limits)
    driver.add(1, [*prompt, 50], max_tokens=12)
    steps(driver, 2)
    driver.add(2, [*prompt, 60], max_tokens=12)
    steps(driver, 2)
    assert table_of(driver, 1)[:2] == table_of(driver, 2)[:2]
    evict(driver, 2)
    return driver, [*prompt, 60]


def test_shared_full_blocks_are_not_copied_but_matched_again():
    driver, prompt = sharing()
    assert driver.plan is not None
    assert len(driver.plan.copies.swap_out) == 1
    shared = table_of(driver, 1)[:2]
    Gate.closed = frozenset()

    driver.step()

    assert driver.plan is not None
    assert len(driver.plan.copies.swap_in) == 1
    assert table_of(driver, 2)[:2] == shared
    driver.run()
    assert driver.tokens[2] == oracle(prompt, 12)
    assert driver.scheduler.statistics().recomputed_tokens == 0


def test_a_shared_block_that_nobody_holds_any_more_is_found_in_the_cache():
    driver, prompt = sharing()
    driver.scheduler.drop(1)
    driver.step()
    Gate.closed = frozenset()

    driver.step()

    assert len(driver.preempted) == 1
    assert driver.cached[2] == 11
    driver.run()
    assert driver.tokens[2] == oracle(prompt, 12)


def test_the_host_copy_is_dropped_when_a_shared_block_is_gone():
    """A row has no holes: it is recomputed, and what it had on the host is free again."""
    driver, prompt = sharing()
    driver.scheduler.drop(1)
    driver.step()
    driver.scheduler.reset_prefix_cache()
    assert driver.scheduler.statistics().free_host_blocks == 7
    Gate.closed = frozenset()

    driver.step()

    assert driver.plan is not None
    assert len(driver.plan.copies.swap_in) == 0
    assert isinstance(last(driver, 2, HostCopyDropped), HostCopyDropped)
    resumed = last(driver, 2, Resumed)
    assert isinstance(resumed, Resumed)
    assert (resumed.from_host, resumed.cached_tokens) == (False, 0)
    statistics = driver.scheduler.statistics()
    assert statistics.swapped == 0
    assert statistics.recomputed_tokens == 11
    driver.step()
    assert driver.scheduler.statistics().free_host_blocks == 8
    driver.run()
    assert driver.tokens[2] == oracle(prompt, 12)


def test_the_host_copy_is_dropped_after_a_plain_eviction_too():
    driver, prompt = sharing(num_blocks=12, max_model_len=40)
    driver.scheduler.drop(1)
    driver.add(9, [70] * 37, max_tokens=1)  # ten blocks
    driver.step()
    assert 9 in driver.admitted
    driver.step()
    Gate.closed = frozenset()

    driver.run()

    kinds = [type(each).__name__ for each in driver.scheduler.timeline(2)]
    assert kinds[2:-1] == ["Preempted", "HostCopyDropped", "Resumed"]
    assert driver.tokens[2] == oracle(prompt, 12)


def test_the_host_copy_is_dropped_when_only_the_last_shared_block_was_evicted():
    """What is still found before the hole is pinned; the rest is computed again."""
    driver, prompt = sharing(num_blocks=12, max_model_len=40, max_num_batched_tokens=64)
    driver.scheduler.drop(1)
    driver.step()
    statistics = driver.scheduler.statistics()
    available = statistics.free_blocks + statistics.cached_blocks
    driver.add(9, [70] * (4 * (available - 1) - 1), max_tokens=1)  # all but the prefix's head
    driver.step()
    assert 9 in driver.admitted
    Gate.closed = frozenset()

    driver.run()

    resumed = last(driver, 2, Resumed)
    assert isinstance(resumed, Resumed)
    assert (resumed.from_host, resumed.cached_tokens) == (False, 4)
    assert driver.tokens[2] == oracle(prompt, 12)


def test_what_is_still_published_is_pinned_instead_of_copied_back():
    driver = swapping()
    driver.add(1, list(range(1, 11)), max_tokens=8)
    steps(driver, 2)
    held = table_of(driver, 1)
    evict(driver, 1)
    assert driver.plan is not None
    assert len(driver.plan.copies.swap_out) == 3
    Gate.closed = frozenset()

    driver.step()

    assert len(driver.plan.copies.swap_in) == 1, "only the partial tail was never published"
    assert table_of(driver, 1)[:2] == held[:2]
    driver.step()
    assert driver.scheduler.statistics().free_host_blocks == 8, "all three are free again"
    driver.run()
    assert driver.tokens[1] == oracle(list(range(1, 11)), 8)


def test_a_block_published_by_somebody_else_meanwhile_is_taken_too():
    """Its own was evicted, but another request has computed the same tokens since."""
    prompt = list(range(1, 11))
    driver = swapping()
    driver.add(1, prompt, max_tokens=8)
    steps(driver, 2)
    evict(driver, 1)
    driver.scheduler.reset_prefix_cache()
    driver.add(2, prompt[:5], max_tokens=9)
    steps(driver, 2)
    Gate.closed = frozenset()

    driver.step()

    assert driver.plan is not None
    assert len(driver.plan.copies.swap_in) == 2
    assert table_of(driver, 1)[0] == table_of(driver, 2)[0]
    driver.run()
    assert driver.tokens[1] == oracle(prompt, 8)


def test_without_prefix_caching_everything_is_copied():
    driver = swapping(enable_prefix_caching=False)
    driver.add(1, list(range(1, 11)), max_tokens=8)
    steps(driver, 2)
    evict(driver, 1)
    assert driver.plan is not None
    assert len(driver.plan.copies.swap_out) == 3
    Gate.closed = frozenset()

    driver.step()

    assert driver.plan is not None
    assert len(driver.plan.copies.swap_in) == 3
    driver.run()
    assert driver.tokens[1] == oracle(list(range(1, 11)), 8)


@pytest.mark.parametrize(("num_host_blocks", "swapped"), [(0, False), (2, False), (3, True)])
def test_a_host_without_room_for_all_blocks_means_recompute(num_host_blocks: int, swapped: bool):
    driver = swapping(num_host_blocks=num_host_blocks)
    driver.add(1, list(range(1, 11)), max_tokens=8)
    steps(driver, 2)
    evict(driver, 1)

    statistics = driver.scheduler.statistics()
    assert (statistics.swaps, statistics.preemptions) == (int(swapped), 1)
    assert statistics.free_host_blocks == (0 if swapped else num_host_blocks)
    assert driver.plan is not None
    assert len(driver.plan.copies.swap_out) == (3 if swapped else 0)
    record = last(driver, 1, Preempted)
    assert isinstance(record, Preempted)
    assert record.swapped is swapped
    Gate.closed = frozenset()
    driver.run()
    assert driver.tokens[1] == oracle(list(range(1, 11)), 8)


def test_a_host_block_freed_in_a_step_is_not_used_again_in_that_step():
    """Request 1 comes back while 2 gives way to 3: the host blocks of 1 are still being read."""
    driver = swapping(num_host_blocks=2, max_num_seqs=3)
    driver.add(1, [1] * 6, max_tokens=8)
    driver.add(2, [2] * 6, max_tokens=8, credit=2)
    steps(driver, 2)
    evict(driver, 1)
    driver.step()
    statistics = driver.scheduler.statistics()
    assert (statistics.parked, statistics.swapped, statistics.free_host_blocks) == (1, 1, 0)
    driver.scheduler.reset_prefix_cache()
    Gate.closed = frozenset()
    driver.add(3, [3] * 6, max_tokens=2)

    report = driver.step()

    assert report.admitted.tolist() == [1, 3]
    assert report.preempted.tolist() == [2]
    record = last(driver, 2, Preempted)
    assert isinstance(record, Preempted)
    assert not record.swapped
    assert driver.scheduler.statistics().free_host_blocks == 2, "free from the next step on"
    driver.step()
    assert driver.scheduler.statistics().free_host_blocks == 2
    driver.scheduler.grant(2, 99)
    driver.run()
    for request, num in ((1, 8), (2, 8), (3, 2)):
        assert driver.tokens[request] == oracle([request] * 6, num)


@pytest.mark.parametrize("leave", ["drop", "finish"])
def test_a_swapped_row_that_leaves_gives_its_host_blocks_back(leave: str):
    driver, _ = sharing()
    assert driver.scheduler.statistics().free_host_blocks == 7

    getattr(driver.scheduler, leave)(2)
    steps(driver, 2)

    statistics = driver.scheduler.statistics()
    assert (statistics.free_host_blocks, statistics.swapped, statistics.waiting) == (8, 0, 0)


@pytest.mark.parametrize("leaves_after", [1, 2, 3, 4])
def test_a_half_prefilled_row_is_swapped_and_goes_on(leaves_after: int):
    prompt = list(range(1, 46))
    driver = swapping(num_host_blocks=16, max_num_batched_tokens=9, max_num_seqs=4)
    steps(driver, 1)
    driver.add(1, prompt, max_tokens=3)
    Gate.closed = frozenset()
    steps(driver, leaves_after)
    evict(driver, 1)
    assert driver.plan is not None
    assert len(driver.plan.copies.swap_out) == 2 * leaves_after
    driver.scheduler.reset_prefix_cache()
    Gate.closed = frozenset()

    driver.step()

    assert driver.plan.num_context.tolist()[-1] == 8 * leaves_after
    driver.run()
    assert driver.tokens[1] == oracle(prompt, 3)
    assert driver.scheduler.statistics().computed_tokens == (45 + 2) + 60
    assert driver.scheduler.statistics().recomputed_tokens == 0


def test_a_prompt_of_several_choices_is_swapped_as_one():
    prompt = list(range(1, 30))
    driver = swapping(num_host_blocks=16, max_num_batched_tokens=9, max_num_seqs=4)
    driver.step()
    driver.add(1, prompt, max_tokens=6, n=3)
    steps(driver, 2)
    Gate.closed = frozenset({1})
    driver.scheduler.preempt(2, swap=True)

    report = driver.step()

    assert report.preempted.tolist() == [1, 2, 3]
    statistics = driver.scheduler.statistics()
    assert (statistics.running, statistics.waiting, statistics.swaps) == (1, 3, 3)
    assert driver.plan is not None
    assert len(driver.plan.copies.swap_out) == 4
    driver.scheduler.reset_prefix_cache()
    driver.scheduler.drop(1)
    Gate.closed = frozenset()
    driver.run()
    assert driver.tokens[2] == oracle(prompt, 6, 1)
    assert driver.tokens[3] == oracle(prompt, 6, 2)
    assert driver.scheduler.statistics().free_host_blocks == 16


def test_a_choice_without_anything_of_its_own_is_recomputed():
    """Right after the fork at a block edge all it has is shared: there is nothing to copy."""
    driver = swapping()
    driver.add(1, list(range(1, 9)), max_tokens=6, n=2)
    driver.step()
    evict(driver, 2)

    record = last(driver, 2, Preempted)
    assert isinstance(record, Preempted)
    assert not record.swapped
    assert driver.plan is not None
    assert len(driver.plan.copies.swap_out) == 0
    Gate.closed = frozenset()
    driver.step()
    assert driver.cached[2] == 8
    driver.run()
    assert driver.tokens[2] == oracle(list(range(1, 9)), 6, 1)
    assert driver.scheduler.statistics().recomputed_tokens == 0


@pytest.mark.parametrize("steps_before", [1, 2, 3])
def test_a_choice_with_a_shared_partial_tail_takes_a_copy_of_it_along(steps_before: int):
    """Before the first write the tail is shared, and nothing else would keep its content."""
    prompt = list(range(1, 7))
    driver = swapping()
    driver.add(1, prompt, max_tokens=9, n=3)
    steps(driver, steps_before)
    evict(driver, 2)
    assert driver.plan is not None
    assert len(driver.plan.copies.swap_out) == 1
    assert len(driver.plan.copies.on_write) == (steps_before == 1)
    steps(driver, 2)
    Gate.closed = frozenset()

    driver.run()

    for choice in range(3):
        assert driver.tokens[1 + choice] == oracle(prompt, 9, choice)
    assert driver.scheduler.statistics().recomputed_tokens == 0


def test_swapped_out_blocks_may_be_written_in_the_same_step():
    """Memory is short, so the victim's blocks go straight to who was lacking them."""
    driver = Driver(
        Profile({**GREEDY, "choose_preemption": "swap"}),
        num_blocks=6,
        max_model_len=24,
        num_host_blocks=12,
    )
    for request in range(3):
        driver.add(request, [request + 1] * 7, max_tokens=12)
    reused = False
    while driver.scheduler.has_unfinished:
        driver.step()
        if driver.plan is not None:
            sources = {device for device, _ in pairs(driver.plan.copies.swap_out)}
            reused |= bool(sources & set(driver.plan.layout().blocks.tolist()))

    assert reused
    assert driver.scheduler.statistics().swaps == len(driver.preempted) > 0
    assert driver.scheduler.statistics().recomputed_tokens == 0
    for request in range(3):
        assert driver.tokens[request] == oracle([request + 1] * 7, 12)


def overloaded(chosen: dict[str, str], **fields: bool) -> Driver:
    """Three requests that overrun the pool; the newest may not be treated as the policy wants."""
    driver = Driver(
        Profile({**GREEDY, **chosen}), num_blocks=6, max_model_len=24, num_host_blocks=9
    )
    for request in range(3):
        driver.add(request, [request + 1] * 7, max_tokens=12, **(fields if request == 2 else {}))
    driver.run()
    for request in range(3):
        assert driver.tokens[request] == oracle([request + 1] * 7, 12)
    return driver


def flavours(driver: Driver, request: int) -> set[bool]:
    return {
        record.swapped
        for record in driver.scheduler.timeline(request)
        if isinstance(record, Preempted)
    }


def test_who_must_not_be_swapped_is_recomputed():
    driver = overloaded({"choose_preemption": "swap"}, may_swap=False)

    assert flavours(driver, 2) == {False}
    assert flavours(driver, 1) <= {True}


def test_who_must_not_be_recomputed_is_swapped():
    driver = overloaded({"choose_preemption": "recompute"}, may_recompute=False)

    assert flavours(driver, 2) <= {True}
    assert flavours(driver, 1) | flavours(driver, 2), "the case no longer preempts"
    assert flavours(driver, 1) <= {False}


def test_without_a_way_to_swap_it_is_recomputed_after_all():
    driver = Driver(Profile(GREEDY), num_blocks=6, max_model_len=24)
    for request in range(3):
        driver.add(request, [request + 1] * 7, max_tokens=12, may_recompute=False)

    driver.run()

    assert driver.preempted
    assert driver.scheduler.statistics().swaps == 0
    for request in range(3):
        assert driver.tokens[request] == oracle([request + 1] * 7, 12)


class Counting:
    """Counts questions by step, and remembers what it was told."""

    def __init__(self) -> None:
        type(self).asked = Counter()
        type(self).costs = []

    @hookimpl
    def choose_preemption(
        self, victims: RequestColumns, costs: PreemptionCosts, step: StepView
    ) -> np.ndarray:
        self.asked["flavour", step.step_id] += 1
        self.costs.append((victims.request.tolist(), costs))
        return victims.request % 2 == 0

    @hookimpl
    def select_victims(self, running: RequestColumns, step: StepView) -> np.ndarray:
        self.asked["victims", step.step_id] += 1
        return -running.admission.astype(float)


def test_policies_are_asked_once_a_step_for_all_victims_and_obeyed_for_each():
    """Two victims at once; one is swapped and the other is not."""
    chosen = {**GREEDY, "choose_preemption": "counting", "select_victims": "counting"}
    driver = Driver(
        Profile(chosen, {**BUILTIN, "counting": Counting}),
        costs=CostModel(token_s=1e-3, copy_block_s=1e-2),
        num_blocks=10,
        max_model_len=40,
        max_num_batched_tokens=64,
        num_host_blocks=9,
    )
    for request in range(5):
        driver.add(request, [request + 1] * 8, max_tokens=8)
    driver.step()
    report = driver.step()

    assert report.preempted.tolist() == [4, 3]
    assert [request for request, _ in Counting.costs] == [[4, 3]]
    costs = Counting.costs[0][1]
    assert costs.recompute_tokens.tolist() == [8, 8], "the newest is to be computed anyway"
    assert costs.swap_blocks.tolist() == [2, 2]
    assert costs.swap_s.tolist() == pytest.approx([4e-2, 4e-2])
    assert costs.recompute_s.tolist() == pytest.approx([8e-3, 8e-3])
    assert (flavours(driver, 4), flavours(driver, 3)) == ({True}, {False})
    record = last(driver, 4, Preempted)
    assert isinstance(record, Preempted)
    assert (record.recompute_s, record.swap_s) == pytest.approx((8e-3, 4e-2))
    assert record.cause is Cause.MEMORY

    driver.run()
    assert driver.decisions.faults == 0
    assert set(Counting.asked.values()) == {1}
    for request in range(5):
        assert driver.tokens[request] == oracle([request + 1] * 8, 8)


def test_costs_leave_out_what_others_hold_and_what_cannot_be_swapped():
    chosen = {**GREEDY, "choose_preemption": "counting", "select_victims": "counting"}
    driver = Driver(
        Profile(chosen, {**BUILTIN, "counting": Counting}),
        num_blocks=8,
        max_model_len=32,
        costs=CostModel(token_s=1e-3, copy_block_s=1e-2),
        num_host_blocks=9,
    )
    prefix = list(range(1, 9))
    driver.add(0, [*prefix, 50], max_tokens=16)
    steps(driver, 2)
    driver.add(1, [*prefix, 60], max_tokens=16, may_swap=False)
    driver.add(2, [*prefix, 70], max_tokens=16)
    while not Counting.costs:
        driver.step()

    victims, costs = Counting.costs[0]
    assert victims == [2]
    assert costs.swap_blocks.tolist() == [2]
    assert costs.recompute_tokens.tolist() == [14 - 8]
    driver.run()
    for request, own in ((0, 50), (1, 60), (2, 70)):
        assert driver.tokens[request] == oracle([*prefix, own], 16)
    for victims, costs in Counting.costs:
        finite = np.isfinite(costs.swap_s).tolist()
        assert finite == [request != 1 for request in victims]


@pytest.mark.parametrize(("cap", "victim"), [(8, 2), (2, 2), (1, 1)])
def test_who_was_preempted_too_often_is_spared_for_another(cap: int, victim: int):
    """The newest is forced out once; when memory is short it is taken again only below the cap."""
    driver = Driver(Profile(GREEDY), num_blocks=6, max_model_len=24, max_preemptions=cap)
    for request in range(3):
        driver.add(request, [request + 1] * 3, max_tokens=20)
    steps(driver, 2)
    driver.scheduler.preempt(2, swap=False)
    driver.step()
    assert driver.admitted == [0, 1, 2, 2]

    driver.run()

    assert driver.preempted[:2] == [2, victim]
    for request in range(3):
        assert driver.tokens[request] == oracle([request + 1] * 3, 20)


def test_the_oldest_is_never_preempted_for_memory_whatever_protects_the_others():
    driver = Driver(
        Profile(GREEDY), num_blocks=6, max_model_len=24, block_size=4, max_preemptions=0
    )
    for request in range(3):
        driver.add(request, [request + 1] * 3, max_tokens=20, may_recompute=request == 0)

    driver.run()

    assert driver.preempted
    assert 0 not in driver.preempted


def test_a_forced_preemption_of_who_has_no_seat_changes_nothing():
    driver = swapping(max_num_seqs=1)
    driver.add(1, [1, 2], max_tokens=2)
    driver.step()
    driver.scheduler.preempt(1, swap=True)
    driver.scheduler.preempt(77, swap=False)

    driver.step()

    assert driver.preempted == []


@pytest.mark.parametrize("swap", [True, False])
def test_a_row_preempted_in_every_step_still_gets_its_tokens(swap: bool):
    driver = swapping()
    prompt = list(range(1, 11))
    driver.add(1, prompt, max_tokens=9)
    while 1 not in driver.ends:
        driver.step()
        driver.scheduler.preempt(1, swap=swap)

    assert driver.tokens[1] == oracle(prompt, 9)
    assert len(driver.preempted) == 8


def test_recomputed_tokens_are_those_dropped_and_not_found_again():
    driver = swapping()
    driver.add(1, list(range(1, 11)), max_tokens=8)
    steps(driver, 2)
    evict(driver, 1, swap=False)
    assert driver.scheduler.statistics().recomputed_tokens == 0
    Gate.closed = frozenset()

    driver.step()

    assert driver.cached[1] == 8
    assert driver.scheduler.statistics().recomputed_tokens == 11 - 8
    driver.run()
    assert driver.scheduler.statistics().prefix_queries == 1 + 10, "first admissions alone count"


@pytest.mark.parametrize("swap", [True, False])
def test_cached_prefixes_may_be_forgotten_at_any_time(swap: bool):
    """Running, swapped and preempted rows all come to the right end."""
    prompt = list(range(1, 11))
    for at in range(8):
        driver = swapping()
        driver.add(1, prompt, max_tokens=9)
        steps(driver, 2)
        driver.add(2, [*prompt[:9], 99], max_tokens=9)
        for step in range(8):
            Gate.closed = frozenset({2} if 3 < step < 6 else {})
            if step == 3:
                driver.scheduler.preempt(2, swap=swap)
            if step == at:
                driver.scheduler.reset_prefix_cache()
                assert driver.scheduler.statistics().cached_blocks == 0
            driver.step()
        driver.scheduler.drop(0)
        driver.run()

        assert driver.tokens[1] == oracle(prompt, 9)
        assert driver.tokens[2] == oracle([*prompt[:9], 99], 9)
