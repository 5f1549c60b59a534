"""Built-in policies keep their promises in the scheduler itself."""

import random

import pytest

from cadenza.policies.profile import Profile
from cadenza.testing import Driver


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


@pytest.mark.parametrize("seed", [0, 1])
def test_under_no_evict_nobody_is_preempted(seed: int):
    """48 blocks hold the largest request with all its choices, but never everybody."""
    careful = Driver(Profile({"reserve_blocks": "no-evict"}), num_blocks=48)
    crowd(careful, seed)
    assert careful.preempted == []

    careless = Driver(Profile({"reserve_blocks": "none"}), num_blocks=48)
    crowd(careless, seed)
    assert careless.preempted


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
