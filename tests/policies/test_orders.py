"""Orders that look at one request at a time, on small cases computed by hand."""

from dataclasses import replace
from time import perf_counter

import numpy as np
import pytest

from cadenza.policies import RequestColumns
from cadenza.policies.builtin import (
    BUILTIN,
    Edf,
    Hrrn,
    LeastLaxity,
    MaxWait,
    Mlfq,
    Priority,
    ShortestPrefill,
)
from cadenza.policies.profile import Profile
from cadenza.scheduler.decisions import Starving
from cadenza.testing import Driver
from tests.policies.views import STEP, order_of, whole

NOW = replace(STEP, now_s=100.0)


def order(policy: object, waiting: RequestColumns, step: object = NOW) -> list[int]:
    return order_of(policy.order_admissions(waiting, step), waiting)


class TestPriority:
    def test_the_lowest_number_is_first_and_equals_go_by_arrival(self):
        waiting = whole(priority=[5, -1, 0, 5], arrival_s=[100.0] * 4)

        assert order(Priority(), waiting) == [1, 2, 0, 3]

    def test_a_wait_of_one_aging_time_is_worth_one_step(self):
        policy = Priority(Priority.Options(aging_s=10))
        waiting = whole(priority=[3, 1, 2, 1], arrival_s=[75.0, 99.0, 90.5, 100.0])

        # 3 - 2 = 1, 1 - 0 = 1, 2 - 0 = 2, 1: the aged one draws level and came first
        assert order(policy, waiting) == [0, 1, 3, 2]

    def test_without_aging_it_is_strict(self):
        policy = Priority(Priority.Options(aging_s=float("inf")))

        assert order(policy, whole(priority=[1, 0], arrival_s=[-1e9, 100.0])) == [1, 0]

    def test_those_that_arrive_later_by_more_than_the_aging_time_stay_behind(self):
        policy = Priority(Priority.Options(aging_s=5))
        overtaking = []
        for arrival_s in range(100):  # whole seconds, so that nothing depends on rounding
            waiting = whole(priority=[1, 0], arrival_s=[0.0, float(arrival_s)])
            step = replace(STEP, now_s=float(arrival_s))
            overtaking.append(order(policy, waiting, step) == [1, 0])

        assert overtaking == [True] * 5 + [False] * 95


@pytest.mark.parametrize(
    ("policy", "option"),
    [(Priority, "aging_s"), (LeastLaxity, "quantum_s"), (MaxWait, "seconds"), (Mlfq, "promote_s")],
)
@pytest.mark.parametrize("seconds", [-1.0, 0.0, 5e-324, 9e-4, float("nan")])
def test_times_below_a_millisecond_are_refused(policy: type, option: str, seconds: float):
    with pytest.raises(ValueError, match=rf"{option} must be .*at least 0\.001"):
        policy.Options(**{option: seconds})
    assert getattr(policy.Options(**{option: 1e-3}), option) == 1e-3


def test_shortest_prefill_counts_what_neither_cache_nor_host_holds():
    waiting = whole(
        prompt_tokens=[40, 10, 60, 50],
        cached_tokens=[16, 0, 0, 48],
        host_tokens=[0, 0, 55, 0],
    )

    assert order(ShortestPrefill(), waiting) == [3, 2, 1, 0]


def test_shortest_prefill_leaves_equals_to_arrival():
    waiting = whole(prompt_tokens=[7, 7, 7], arrival=[5, 2, 9])

    assert order(ShortestPrefill(), waiting) == [1, 0, 2]


def test_hrrn_goes_by_wait_for_size():
    # waits 10, 2, 50; sizes 10, 1, 100: ratios 1, 2, 0.5
    waiting = whole(waits_since_s=[90.0, 98.0, 50.0], prompt_tokens=[10, 1, 100])

    assert order(Hrrn(), waiting) == [1, 0, 2]


def test_hrrn_lets_a_long_prompt_pass_short_ones_in_time():
    def first(now_s: float) -> int:
        """A prompt of 1000 tokens waits since 0; one of 10 arrived a second ago."""
        waiting = whole(waits_since_s=[0.0, now_s - 1], prompt_tokens=[1000, 10])
        return order(Hrrn(), waiting, replace(STEP, now_s=now_s))[0]

    assert [first(now_s) for now_s in (50.0, 99.0, 101.0, 500.0)] == [1, 1, 0, 0]


class TestEdf:
    def test_the_earliest_first_token_comes_first_and_no_target_last(self):
        waiting = whole(arrival_s=[99.0, 99.5, 90.0], ttft_target_s=[3.0, 2.0, np.inf])

        assert order(Edf(), waiting) == [1, 0, 2]

    def test_later_tokens_are_due_by_their_own_target(self):
        waiting = whole(
            arrival_s=[90.0, 99.0],
            ttft_target_s=[1.0, 4.0],
            tpot_target_s=[1.0, 1.0],
            generated_tokens=[11, 0],  # due at 102, and at 103
        )

        assert order(Edf(), waiting) == [0, 1]

    def test_with_a_target_for_later_tokens_alone_they_are_due_after_the_last_run(self):
        waiting = whole(
            tpot_target_s=[2.0, np.inf, 3.0],
            generated_tokens=[5, 0, 5],
            last_run_s=[99.5, 0.0, 99.0],  # due at 101.5 and 102
            ttft_target_s=[np.inf, 101.7, np.inf],
        )

        assert order(Edf(), waiting) == [0, 1, 2]

    def test_a_deadline_is_a_target_too(self):
        assert order(Edf(), whole(deadline_s=[120.0, 110.0, np.inf])) == [1, 0, 2]

    def test_who_can_not_be_in_time_goes_behind_those_who_can(self):
        step = replace(NOW, token_s=0.01)
        waiting = whole(
            ttft_target_s=[101.0, 101.5, 99.0], prompt_tokens=[200, 100, 1]
        )  # 2 s of prefill for a second, 1 s for one and a half, and one that is late

        assert order(Edf(), waiting, step) == [1, 0, 2]

    def test_it_meets_what_arrival_order_misses(self):
        def in_time(policy: str) -> int:
            driver = Driver(Profile({"order_admissions": policy}), max_num_seqs=1)
            for request in range(8):
                driver.add(request, [request + 1] * 4, max_tokens=1, ttft_target_s=0.2)
            for request in range(8, 10):
                driver.add(request, [request + 1] * 4, max_tokens=1, ttft_target_s=0.05)
            met = 0
            while driver.scheduler.has_unfinished:
                report = driver.step()
                for request in report.requests.tolist():
                    met += driver.now_s <= (0.2 if request < 8 else 0.05)
            return met

        assert in_time("fcfs") == 8
        assert in_time("edf") == 10


class TestLeastLaxity:
    def test_the_longer_of_two_with_one_deadline_comes_first(self):
        step = replace(NOW, token_s=0.001)
        waiting = whole(ttft_target_s=[102.0, 102.0], prompt_tokens=[10, 1000])

        assert order(LeastLaxity(), waiting, step) == [1, 0]

    def test_predicted_outputs_count_against_a_deadline(self):
        step = replace(NOW, step_s=0.1)
        waiting = whole(
            deadline_s=[120.0, 120.0, 120.0],
            predicted_tokens=[0, 150, 150],
            generated_tokens=[0, 0, 100],
            max_tokens=[200] * 3,
        )

        assert order(LeastLaxity(), waiting, step) == [1, 2, 0]

    def test_nobody_is_expected_to_outgrow_max_tokens(self):
        step = replace(NOW, step_s=0.1)
        waiting = whole(deadline_s=[102.0], predicted_tokens=[500], max_tokens=[10])

        assert LeastLaxity().order_admissions(waiting, step).tolist() == [20.0]

    def test_differences_within_a_quantum_are_none(self):
        waiting = whole(ttft_target_s=[101.04, 101.01, 101.06])

        assert order(LeastLaxity(), waiting) == [0, 1, 2]

    def test_who_would_be_late_or_wants_nothing_goes_last_by_arrival(self):
        waiting = whole(ttft_target_s=[np.inf, 99.0, np.inf, 101.0])

        assert order(LeastLaxity(), waiting) == [3, 0, 1, 2]


def test_max_wait_marks_who_has_waited_so_long_since_the_last_seat():
    guard = MaxWait(MaxWait.Options(seconds=5))
    waiting = whole(waits_since_s=[95.0, 95.1, 94.0], arrival_s=[0.0, 0.0, 0.0])

    assert guard.guard_starvation(waiting, NOW).tolist() == [True, False, True]


def test_under_max_wait_a_long_prompt_enters_among_shorter_ones():
    chosen = {"order_admissions": "shortest-prefill", "guard_starvation": "max-wait"}
    profile = Profile(chosen, options={"max-wait": {"seconds": 0.1}})
    driver = Driver(profile, max_num_seqs=1)
    driver.add(0, [1] * 30, max_tokens=1)
    request = 0
    while 0 not in driver.admitted:
        request += 1
        driver.add(request, [2, request], max_tokens=1)
        driver.step()
        assert driver.now_s < 0.2


ORDERS = [name for name, policy in BUILTIN.items() if hasattr(policy, "order_admissions")]


def crowd(num: int, seed: int = 0) -> RequestColumns:
    rng = np.random.default_rng(seed)
    keys = rng.integers(-(2**62), 2**62, max(1, num // 3))
    return whole(
        request=rng.permutation(num),
        arrival=rng.permutation(num),
        arrival_s=rng.uniform(0, 100, num),
        waits_since_s=rng.uniform(0, 100, num),
        priority=rng.integers(-3, 4, num),
        tenant=rng.integers(0, 300, num),
        ttft_target_s=rng.choice([0.5, 50.0, np.inf], num),
        tpot_target_s=rng.choice([0.5, np.inf], num),
        deadline_s=rng.choice([90.0, 200.0, np.inf], num),
        prompt_tokens=rng.integers(1, 4000, num),
        num_tokens=rng.integers(4000, 5000, num),
        cached_tokens=rng.integers(0, 200, num) * 16,
        generated_tokens=rng.integers(0, 3, num),
        max_tokens=rng.integers(3, 2000, num),
        next_block_key=keys[rng.integers(0, len(keys), num)] if num else keys[:0],
        admission=rng.integers(-1, 2, num),
    )


@pytest.mark.parametrize("name", ORDERS)
@pytest.mark.parametrize("num", [0, 1, 2, 500])
def test_every_order_scores_everybody_with_a_number(name: str, num: int):
    waiting = crowd(num)

    scores = BUILTIN[name]().order_admissions(waiting, NOW)

    assert scores.shape == (num,)
    assert scores.dtype == np.float64
    assert (scores > -np.inf).all()  # and none of them is no number
    if num:
        assert (scores < np.inf).any()


@pytest.mark.parametrize("name", ORDERS)
def test_the_order_of_10_000_takes_a_millisecond_or_so(name: str):
    policy, waiting = BUILTIN[name](), crowd(10_000)
    columns, rows = waiting._columns, waiting._rows
    best_s = np.inf
    for step_id in range(60):
        step = replace(NOW, step_id=step_id)
        view = RequestColumns(columns, rows)
        start_s = perf_counter()
        policy.order_admissions(view, step)
        best_s = min(best_s, perf_counter() - start_s)

    assert best_s < 0.004  # 0.05 to 1.3 ms where nothing else runs


@pytest.mark.parametrize("order", ["fcfs", "fair-share"])
def test_no_guard_makes_anybody_wait_who_is_first_by_arrival(order: str):
    """More come than are served, so that most of those who wait starve by this guard's word."""

    def admitted(guard: str) -> list[int]:
        chosen = {"order_admissions": order, "guard_starvation": guard}
        driver = Driver(
            Profile(chosen, options={guard: {"seconds": 0.1}} if guard == "max-wait" else {}),
            max_num_seqs=1,
        )
        for request in range(80):
            driver.add(request, [1, 2, 3], max_tokens=1, tenant=str(request % 2))
            if request % 4:
                driver.step()
        driver.run()
        starve = [record for record in driver.decided if isinstance(record, Starving)]
        assert bool(starve) == (guard == "max-wait")
        return driver.admitted

    assert admitted("max-wait") == admitted("bounded-overtake") == list(range(80))
