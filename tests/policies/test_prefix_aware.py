"""The longest prefix first, one of each kind; and what that brings in the prefix cache."""

import random
from dataclasses import replace

from cadenza.policies.builtin import PrefixAware
from cadenza.policies.profile import Profile
from cadenza.testing import Driver, oracle
from tests.policies.views import STEP, order_of, whole


def order(policy: PrefixAware, step_id: int = 0, **values: list[int]) -> list[int]:
    waiting = whole(**values)
    return order_of(policy.order_admissions(waiting, replace(STEP, step_id=step_id)), waiting)


def test_the_longest_cached_prefix_is_first_and_equals_go_by_arrival():
    assert order(PrefixAware(), cached_tokens=[0, 32, 16, 32]) == [1, 3, 2, 0]


def test_of_those_that_lack_one_block_the_earliest_goes_and_the_others_stay_out():
    keys = [7, -9, 7, 0, 7, -9]

    assert order(PrefixAware(), next_block_key=keys, arrival=[5, 1, 2, 3, 4, 0]) == [5, 2, 3]


def test_who_lacks_no_block_is_nobody_s_duplicate():
    assert order(PrefixAware(), next_block_key=[0, 0, 0]) == [0, 1, 2]


def test_whose_prefix_grows_waits_for_more_and_goes_once_it_grows_no_more():
    policy = PrefixAware()

    assert order(policy, 1, request=[4, 5], next_block_key=[7, 7]) == [0]
    # 4 runs; what it computed was found by 5, which now lacks the next block
    assert order(policy, 2, request=[5, 6], next_block_key=[8, 3], cached_tokens=[16, 0]) == [1]
    assert order(policy, 3, request=[5], next_block_key=[9], cached_tokens=[32]) == []
    assert order(policy, 4, request=[5], next_block_key=[9], cached_tokens=[32]) == [0]


def test_who_has_found_all_of_it_goes_at_once():
    policy = PrefixAware()
    order(policy, 1, request=[5], next_block_key=[8], cached_tokens=[16])

    assert order(policy, 2, request=[5], next_block_key=[0], cached_tokens=[32]) == [0]


def test_growth_over_steps_in_which_nobody_asked_says_nothing():
    policy = PrefixAware()
    order(policy, 1, request=[5], next_block_key=[8])

    assert order(policy, 3, request=[5], next_block_key=[9], cached_tokens=[16]) == [0]


def test_nobody_waits_for_one_that_has_no_seats_for_its_choices():
    waiting = whole(next_block_key=[7, 7, 7, 5, 5], choices=[8, 1, 1, 8, 8])

    def admitted(free_seats: int) -> list[int]:
        step = replace(STEP, free_seats=free_seats)
        return order_of(PrefixAware().order_admissions(waiting, step), waiting)

    assert admitted(8) == [0, 3]
    assert admitted(7) == [1, 3, 4]  # of those that lack block 5 nobody fits, nor holds others back
    assert admitted(0) == [1, 3, 4]


def test_nobody_waits_any_longer_for_one_that_could_enter_and_did_not():
    policy = PrefixAware()
    waits = {"request": [4, 5, 6, 7], "next_block_key": [7, 7, 3, 3]}

    assert order(policy, 1, **waits) == [0, 2]
    assert order(policy, 4, **waits) == [0, 1, 2, 3]
    grown = {"request": [4, 5, 7], "next_block_key": [8, 8, 3], "cached_tokens": [16, 16, 0]}
    assert order(policy, 6, **grown) == [0, 2]


def test_who_was_held_back_is_not_the_one_that_did_not_enter():
    policy = PrefixAware()

    assert order(policy, 1, request=[4, 5, 6], next_block_key=[7, 7, 7]) == [0]
    assert order(policy, 2, request=[5, 6], next_block_key=[7, 7]) == [0]


def families(driver: Driver, num: int, *, shared: int = 24, burst: int = 4) -> dict[int, list[int]]:
    """Requests of six families with long common prefixes arrive mixed, in bursts."""
    rng = random.Random(4)
    prefixes = [[rng.randrange(1, 900) for _ in range(shared)] for _ in range(6)]
    prompts = {}
    for request in range(num):
        tail = [rng.randrange(1, 900) for _ in range(rng.randrange(1, 6))]
        prompts[request] = rng.choice(prefixes) + tail
        driver.add(request, prompts[request], max_tokens=3, ignore_eos=True)
        if request % burst == 0:
            driver.step()
    driver.run()
    return prompts


def hit_rate(order: str, **load: int) -> float:
    driver = Driver(Profile({"order_admissions": order}), num_blocks=32)
    families(driver, 120, **load)
    statistics = driver.scheduler.statistics()
    return statistics.prefix_hits / statistics.prefix_queries


def test_it_beats_arrival_order_in_the_hit_rate_of_shared_prefixes():
    assert hit_rate("prefix-aware") > hit_rate("fcfs") + 0.1


def test_tokens_are_the_same_in_whatever_order():
    driver = Driver(Profile({"order_admissions": "prefix-aware"}), num_blocks=48)
    prompts = families(driver, 60)

    assert driver.tokens == {request: oracle(prompt, 3) for request, prompt in prompts.items()}


def computed(order: str) -> int:
    """Tokens computed for eight prompts, alike but for the last token, each of four steps."""
    driver = Driver(
        Profile({"order_admissions": order}),
        num_blocks=64,
        max_num_batched_tokens=16,
        max_num_seqs=8,
    )
    shared = list(range(1, 49))
    for request in range(8):
        driver.add(request, [*shared, 100 + request], max_tokens=1)
    driver.run()
    return driver.scheduler.statistics().computed_tokens


def test_a_prefix_of_several_chunks_is_computed_once():
    assert computed("prefix-aware") == 48 + 8
    assert computed("fcfs") > 1.5 * (48 + 8)
