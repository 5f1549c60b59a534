"""Built-in policies keep their promises in the scheduler itself."""

import random

import pytest

from cadenza.policies.builtin import BUILTIN
from cadenza.policies.profile import Profile
from cadenza.scheduler.decisions import Cause, Preempted
from cadenza.testing import Driver, oracle


def crowd(driver: Driver, seed: int) -> None:
    """Requests of one or three choices arrive faster than they leave."""
    rng = random.Random(seed)
    request = 0
    for _ in range(20):
        for _ in range(rng.randrange(3)):
            prompt = [rng.randrange(1, 50) for _ in range(rng.randrange(1, 24))]
            n = rng.choice((1, 3))
            driver.add(request, prompt, max_tokens=rng.randrange(1, 40), n=n, ignore_eos=True)
            request += n
        driver.step()
    driver.run()


def preempted_in_a_tight_life(reservation: str, seed: int) -> int:
    """How many are preempted in a pool of 18 blocks, which just holds the largest request.

    That is one of 3 choices of 6 blocks each, nothing shared. Prompts begin alike, clients leave.
    """
    rng = random.Random(seed)
    driver = Driver(Profile({"reserve_blocks": reservation}), num_blocks=18, max_model_len=24)
    request = 0
    for _ in range(8):
        for _ in range(rng.randrange(4)):
            prompt = [rng.randrange(1, 3) for _ in range(rng.randrange(1, 16))]
            n = rng.choice((1, 1, 2, 3))
            driver.add(request, prompt, max_tokens=rng.randrange(1, 24), n=n, ignore_eos=True)
            request += n
        driver.step()
        if rng.random() < 0.2:
            driver.scheduler.drop(rng.randrange(request + 1))
    driver.run()
    return len(driver.preempted)


def test_under_no_evict_nobody_is_preempted():
    assert [preempted_in_a_tight_life("no-evict", seed) for seed in range(16)] == [0] * 16


def test_without_a_reservation_such_lives_preempt():
    assert all(preempted_in_a_tight_life("none", seed) for seed in range(4))


def causes(driver: Driver) -> set[Cause]:
    driver.run()
    return {each.cause for each in driver.decided if isinstance(each, Preempted)}


def careful(num_blocks: int) -> Driver:
    return Driver(Profile({"reserve_blocks": "no-evict"}), num_blocks=num_blocks)


class TestExceptionsOfNoEvict:
    """Those that the policy and `docs/reservations.md` name; one that is gone need not be named."""

    def test_choices_that_exceed_the_pool_evict_each_other(self):
        driver = careful(16)
        driver.add(0, [1] * 4, max_tokens=40, n=4, ignore_eos=True)

        assert causes(driver) == {Cause.MEMORY}

    def test_who_enters_beside_parked_requests_has_not_paid(self):
        driver = careful(16)
        driver.add(0, [1] * 4, max_tokens=60, credit=4, ignore_eos=True)
        for _ in range(6):
            driver.step()
        driver.add(1, [2] * 4, max_tokens=60, ignore_eos=True)
        driver.step()
        driver.scheduler.grant(0, 100)

        assert causes(driver) == {Cause.MEMORY}

    def test_beside_one_that_runs_parked_requests_count(self):
        driver = careful(22)
        driver.add(0, [1] * 4, max_tokens=60, credit=4, ignore_eos=True)
        driver.add(1, [2] * 4, max_tokens=20, ignore_eos=True)
        for _ in range(6):
            driver.step()
        driver.add(2, [3] * 4, max_tokens=40, ignore_eos=True)
        driver.step()
        driver.scheduler.grant(0, 100)

        assert causes(driver) == set()

    def test_nobody_has_paid_for_the_copies_of_choices_that_are_parked(self):
        driver = careful(17)
        driver.add(0, [1] * 5, max_tokens=3, n=4, credit=4, ignore_eos=True)
        for _ in range(3):
            driver.step()
        driver.add(10, [2] * 4, max_tokens=24, ignore_eos=True)
        driver.add(11, [3] * 4, max_tokens=28, ignore_eos=True)
        for _ in range(22):
            driver.step()
        driver.scheduler.grant(0, 100)

        assert causes(driver) == {Cause.MEMORY}

    def test_who_displaces_others_has_not_paid(self):
        chosen = {"order_admissions": "priority", "allow_displacement": "strict-priority"}
        profile = Profile({"reserve_blocks": "no-evict", **chosen})
        driver = Driver(profile, num_blocks=16, max_num_seqs=2)
        driver.add(0, [1] * 4, max_tokens=40, priority=0, ignore_eos=True)
        driver.add(1, [2] * 4, max_tokens=8, priority=2, ignore_eos=True)
        for _ in range(4):
            driver.step()
        driver.add(2, [3] * 4, max_tokens=40, priority=1, ignore_eos=True)

        assert causes(driver) == {Cause.DISPLACED, Cause.MEMORY}


def test_past_future_learns_in_the_scheduler():
    driver = Driver(Profile({"reserve_blocks": "past-future"}))
    crowd(driver, 0)

    assert driver.decisions.faults == 0
    assert driver.decisions.observes_finished


PRIORITIES = {
    "order_admissions": "priority",
    "allow_displacement": "strict-priority",
    "select_victims": "lowest-priority",
}


def test_the_urgent_pushes_out_the_least_urgent_and_the_newest_of_them():
    driver = Driver(Profile(PRIORITIES), max_num_seqs=3)
    for request, priority in enumerate((1, 2, 2)):
        driver.add(request, [1, 2], max_tokens=8, priority=priority, ignore_eos=True)
    driver.step()
    driver.add(3, [3, 4], max_tokens=8, priority=0, ignore_eos=True)

    driver.run()

    assert driver.preempted == [2]
    assert driver.admitted == [0, 1, 2, 3, 2]


def test_equals_wait_for_each_other():
    driver = Driver(Profile(PRIORITIES), max_num_seqs=1)
    for request in range(3):
        driver.add(request, [1, 2], max_tokens=4, priority=5)

    driver.run()

    assert driver.preempted == []
    assert driver.admitted == [0, 1, 2]


OF_ONE_HOOK = [
    {hook: name}
    for hook in ("order_admissions", "select_victims", "allow_displacement", "guard_starvation")
    for name, policy in BUILTIN.items()
    if hasattr(policy, hook)
]
OF_SEVERAL = [
    {"order_admissions": name, "allow_displacement": name} for name in ("srpt-limited", "mlfq")
]


@pytest.mark.parametrize("chosen", OF_ONE_HOOK + OF_SEVERAL, ids=str)
def test_under_every_policy_a_crowd_in_a_tight_pool_gets_its_own_tokens(chosen: dict[str, str]):
    """All have targets, tenants and shared prefixes, and nobody waits for ever."""
    rng = random.Random(7)
    driver = Driver(Profile({"reserve_blocks": "none", **chosen}), num_blocks=24, num_host_blocks=8)
    prefixes = [[rng.randrange(1, 900) for _ in range(12)] for _ in range(3)]
    prompts, lengths = {}, {}
    for request in range(60):
        tail = [rng.randrange(1, 900) for _ in range(rng.randrange(1, 9))]
        prompts[request] = rng.choice((prefixes[0], prefixes[1], prefixes[2], [])) + tail
        lengths[request] = rng.randrange(1, 16)
        driver.add(
            request,
            prompts[request],
            lengths[request],
            ignore_eos=True,
            priority=rng.randrange(3),
            tenant=rng.choice(("a", "b", "")),
            ttft_target_s=rng.choice((0.02, 0.5, float("inf"))),
            tpot_target_s=rng.choice((0.02, float("inf"))),
            predicted_tokens=rng.choice((0, lengths[request])),
        )
        if request % 3 == 0:
            driver.step()
    driver.run(3_000)

    assert driver.decisions.faults == 0
    assert driver.tokens == {
        request: oracle(prompt, lengths[request]) for request, prompt in prompts.items()
    }
