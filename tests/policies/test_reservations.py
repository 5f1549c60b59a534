"""What the reservation policies keep, on hand-made columns."""

from dataclasses import replace
from time import perf_counter

import numpy as np
import pytest

from cadenza.policies import RequestColumns
from cadenza.policies.builtin import NewTokenRatio, NoEvict, NoReservation, PastFuture
from cadenza.policies.builtin.new_token_ratio import DECAY_STEPS, FLOOR_RATIO, INITIAL_RATIO
from cadenza.policies.builtin.past_future import HISTORY, QUANTILE, SHORTEST_HISTORY
from tests.policies.views import NOBODY, STEP, columns, requests


def test_no_reservation_reserves_nothing():
    assert NoReservation().reserve_blocks(NOBODY, columns(request=[1, 2]), STEP).tolist() == [0] * 3


def test_the_ratio_reserves_a_share_of_what_may_come():
    running = columns(max_tokens=[100], generated_tokens=[0])
    candidates = columns(max_tokens=[50, 100], generated_tokens=[0, 90])

    kept = NewTokenRatio().reserve_blocks(running, candidates, STEP)

    assert kept.tolist() == [7, 11, 12]  # 70, 70 + 35, 70 + 35 + 7 tokens


def test_the_ratio_counts_every_choice():
    candidates = columns(max_tokens=[50], generated_tokens=[0], choices=[4])

    assert NewTokenRatio().reserve_blocks(NOBODY, candidates, STEP).tolist() == [0, 14]


ONE = columns(max_tokens=[100], generated_tokens=[0])


def test_the_ratio_decays_to_its_floor_with_the_steps():
    policy = NewTokenRatio()
    policy.reserve_blocks(ONE, NOBODY, replace(STEP, step_id=DECAY_STEPS // 2))
    assert policy.ratio == pytest.approx((INITIAL_RATIO + FLOOR_RATIO) / 2)

    policy.reserve_blocks(ONE, NOBODY, replace(STEP, step_id=10 * DECAY_STEPS))
    assert policy.ratio == FLOOR_RATIO


def test_a_preemption_raises_the_ratio_and_never_lowers_it():
    policy = NewTokenRatio()
    late = columns(max_tokens=[100], generated_tokens=[75])
    policy.reserve_blocks(late, NOBODY, replace(STEP, preemptions=1))
    assert policy.ratio == pytest.approx(0.95)

    policy.reserve_blocks(ONE, NOBODY, replace(STEP, preemptions=2))
    assert policy.ratio == pytest.approx(0.95)


def test_the_ratio_recovers_from_pressure_while_the_load_goes_on():
    """However long the pressure lasted: the share is back at its floor in a bounded time."""
    policy = NewTokenRatio()
    late = columns(max_tokens=[100] * 8, generated_tokens=[95] * 8)
    for step in range(1, 2_000):
        policy.reserve_blocks(late, NOBODY, replace(STEP, step_id=step, preemptions=step))
    assert policy.ratio == 1.0

    for step in range(2_000, 2_000 + 2 * DECAY_STEPS):
        policy.reserve_blocks(ONE, NOBODY, replace(STEP, step_id=step, preemptions=1_999))
    assert policy.ratio == FLOOR_RATIO


def test_the_ratio_starts_afresh_when_nothing_runs():
    policy = NewTokenRatio()
    policy.reserve_blocks(ONE, NOBODY, replace(STEP, step_id=10 * DECAY_STEPS))
    policy.reserve_blocks(NOBODY, ONE, replace(STEP, step_id=10 * DECAY_STEPS + 1))

    assert policy.ratio == INITIAL_RATIO


def two(parked: list[bool]) -> RequestColumns:
    return columns(max_tokens=[100, 100], generated_tokens=[75, 75], parked=parked)


def test_the_ratio_starts_afresh_when_all_are_parked_but_not_while_one_runs():
    policy = NewTokenRatio()
    policy.reserve_blocks(two([False, False]), NOBODY, replace(STEP, preemptions=1))
    policy.reserve_blocks(two([True, False]), NOBODY, replace(STEP, preemptions=1))
    assert policy.ratio == pytest.approx(0.95)

    policy.reserve_blocks(two([True, True]), NOBODY, replace(STEP, preemptions=1))
    assert policy.ratio == INITIAL_RATIO


def test_the_ratio_keeps_room_for_parked_requests_and_learns_from_them():
    policy = NewTokenRatio()

    kept = policy.reserve_blocks(two([True, False]), NOBODY, STEP)
    policy.reserve_blocks(two([True, False]), NOBODY, replace(STEP, preemptions=1))

    assert kept.tolist() == [4]  # 0.7 * (25 + 25) tokens
    assert policy.ratio == pytest.approx(0.95)  # (75 + 75 + 2 * 20) / (100 + 100)


def test_preemptions_before_an_idle_time_do_not_count_after_it():
    policy = NewTokenRatio()
    late = columns(max_tokens=[100], generated_tokens=[75])
    policy.reserve_blocks(NOBODY, ONE, replace(STEP, step_id=5, preemptions=3))
    policy.reserve_blocks(late, NOBODY, replace(STEP, step_id=6, preemptions=3))

    assert policy.ratio < INITIAL_RATIO


def test_no_evict_keeps_all_that_may_be_written_rounded_up_by_request():
    running = requests([5, 10], [3, 0], max_tokens=[26, 30], blocks_held=[1, 1])
    candidates = requests([9, 10, 1], [0, 5, 0], max_tokens=[2, 20, 9])

    kept = NoEvict().reserve_blocks(running, candidates, STEP)

    # ceil(31/10) - 1 and ceil(40/10) - 1; then 2 - 1, 3 - 2, 1 - 1 for those who enter
    assert kept.tolist() == [6, 7, 8, 8]
    assert kept.dtype == np.int64


def test_no_evict_keeps_nothing_for_blocks_that_are_held_already():
    running = requests([5], max_tokens=[5], blocks_held=[3])

    assert NoEvict().reserve_blocks(running, NOBODY, STEP).tolist() == [0]


def test_no_evict_lets_choices_share_the_full_blocks_of_their_prompt():
    running = requests([25], max_tokens=[20], blocks_held=[3], choices=[4])
    candidates = requests([20, 25], max_tokens=[20, 20], choices=[3, 1])

    kept = NoEvict().reserve_blocks(running, candidates, STEP)

    # Of 45 tokens 5 blocks, 2 of them shared: 2 + 4 * 3 - 3. Then 2 + 3 * 2 - 2, and 5 - 3.
    assert kept.tolist() == [11, 17, 19]


@pytest.mark.parametrize("seed", range(20))
def test_under_no_evict_the_pool_always_has_the_next_block(seed: int):
    """A pool played by hand: admissions by the rule, then growth by a token a step."""
    rng = np.random.default_rng(seed)
    total, size = 40, 4
    step = replace(STEP, block_size=size)
    prompts, limits = rng.integers(1, 30, 60).tolist(), rng.integers(1, 40, 60).tolist()
    running: list[list[int]] = []  # prompt, generated, limit
    held = 0
    while prompts or running:
        view = requests(
            [p for p, _, _ in running],
            [g for _, g, _ in running],
            [m for _, _, m in running],
            [-(-(p + g) // size) for p, g, _ in running],
        )
        kept = NoEvict().reserve_blocks(view, requests(prompts, max_tokens=limits), step)
        for index in range(len(prompts)):
            entry = -(-prompts[0] // size)
            if total - held - entry < (int(kept[index + 1]) if running else 0):
                break
            running.append([prompts.pop(0), 0, limits.pop(0)])
            held += entry
        for request in running:
            request[1] += 1
        running = [request for request in running if request[1] < request[2]]
        held = sum(-(-(p + g) // size) for p, g, _ in running)
        assert held <= total


def finished(lengths: list[int]) -> RequestColumns:
    return columns(generated_tokens=lengths)


def test_with_a_short_history_everybody_is_expected_to_use_all():
    policy = PastFuture()
    policy.on_finished(finished([3] * (SHORTEST_HISTORY - 1)), STEP)
    waiting = requests([1, 1], [0, 60], max_tokens=[100, 100])
    assert policy.remaining(waiting).tolist() == [100, 40]

    policy.on_finished(finished([3]), STEP)
    assert policy.remaining(waiting).tolist() == [3, 40]


def test_a_length_is_the_quantile_of_those_beyond_what_is_generated():
    policy = PastFuture()
    policy.on_finished(finished(list(range(1, 101))), STEP)
    running = requests([1] * 5, [0, 60, 99, 100, 60], max_tokens=[500, 500, 500, 500, 70])

    remaining = policy.remaining(running)

    longer = [100, 40, 1]
    ends = [g + np.ceil(QUANTILE * n) for g, n in zip([0, 60, 99], longer, strict=True)]
    assert remaining[:3].tolist() == [ends[0] - 0, ends[1] - 60, 1]
    assert remaining[3] == 400  # outlived all that is known
    assert remaining[4] == 10  # never beyond its own limit


def test_who_ended_before_the_first_token_teaches_nothing():
    policy = PastFuture()
    policy.on_finished(finished([0] * SHORTEST_HISTORY), STEP)

    assert policy.remaining(requests([1], max_tokens=[100])).tolist() == [100]


def test_the_history_forgets_the_oldest():
    policy = PastFuture()
    policy.on_finished(finished([900] * HISTORY), STEP)
    for _ in range(HISTORY // 8):
        policy.on_finished(finished([20] * 8), STEP)

    assert policy.remaining(requests([1], max_tokens=[1_000])).tolist() == [20]


def test_a_flood_in_one_step_leaves_the_newest():
    policy = PastFuture()
    policy.on_finished(finished([900] * 50 + [20] * HISTORY), STEP)

    assert policy.remaining(requests([1], max_tokens=[1_000])).tolist() == [20]


def naive_peak(occupied: list[int], remaining: list[int], size: int) -> int:
    """Most blocks held at any moment, by going through all of them."""
    return max(
        sum(-(-(o + now) // size) for o, r in zip(occupied, remaining, strict=True) if r >= now)
        for now in range(max(remaining) + 1)
    )


@pytest.mark.parametrize("seed", range(20))
def test_the_peak_is_the_most_that_is_ever_held(seed: int):
    """With no more different lengths than horizons the answer is exact."""
    rng = np.random.default_rng(seed)
    size, num = STEP.block_size, 12
    prompt, limit = rng.integers(1, 80, num).tolist(), rng.integers(1, 60, num).tolist()
    split = int(rng.integers(0, num))
    held = [-(-p // size) for p in prompt]
    running = requests(prompt[:split], None, limit[:split], held[:split])
    candidates = requests(prompt[split:], None, limit[split:])

    kept = PastFuture().reserve_blocks(running, candidates, STEP)

    expected = [
        naive_peak(prompt[:k], limit[:k], size) - sum(held[:k]) if k else 0
        for k in range(split, num + 1)
    ]
    assert kept.tolist() == expected


def test_while_all_limits_are_equal_past_future_keeps_what_no_evict_keeps():
    """Choices included: before anything is learned, nobody is expected to end early."""
    running = requests([25, 8], max_tokens=[20, 20], blocks_held=[3, 1], choices=[4, 1])
    candidates = requests([20, 25], max_tokens=[20, 20], choices=[3, 1])

    kept = PastFuture().reserve_blocks(running, candidates, STEP)

    assert kept.tolist() == NoEvict().reserve_blocks(running, candidates, STEP).tolist()


def test_of_two_with_equal_needs_the_peak_is_less_than_both_ends_together():
    """The short one is gone before the long one is at its longest; no-evict pays for both."""
    running = requests([10, 10], [0, 0], max_tokens=[10, 100], blocks_held=[1, 1])

    assert PastFuture().reserve_blocks(running, NOBODY, STEP).tolist() == [9]
    assert NoEvict().reserve_blocks(running, NOBODY, STEP).tolist() == [11]


@pytest.mark.parametrize("seed", range(5))
def test_rounded_horizons_never_keep_too_little(seed: int):
    rng = np.random.default_rng(seed)
    prompt, limit = rng.integers(1, 500, 300).tolist(), rng.integers(1, 3_000, 300).tolist()
    running = requests(prompt, None, limit, [-(-p // 10) for p in prompt])

    kept = int(PastFuture().reserve_blocks(running, NOBODY, STEP)[0])

    exact = naive_peak(prompt, limit, 10) - sum(-(-p // 10) for p in prompt)
    assert exact <= kept <= 1.1 * exact


@pytest.mark.parametrize("policy", [NewTokenRatio, NoEvict, NoReservation, PastFuture])
def test_with_nobody_at_all_nothing_is_kept(policy: type):
    assert policy().reserve_blocks(NOBODY, NOBODY, STEP).tolist() == [0]


@pytest.mark.parametrize("policy", [NewTokenRatio, NoEvict, NoReservation, PastFuture])
def test_a_reservation_costs_about_a_millisecond(policy: type):
    """1,024 running and 1,024 candidates. The best of several, since the machine is shared; the
    bound is loose, as a loop over requests would break it many times over."""
    rng = np.random.default_rng(0)
    num = 1_024
    prompt, limit = rng.integers(1, 2_000, num).tolist(), rng.integers(100, 4_000, num).tolist()
    done = rng.integers(0, 99, num).tolist()
    held = [-(-(p + g) // 16) for p, g in zip(prompt, done, strict=True)]
    step = replace(STEP, block_size=16)
    asked = policy()
    if policy is PastFuture:
        asked.on_finished(finished(rng.integers(1, 4_000, HISTORY).tolist()), step)

    def once() -> float:
        running = requests(prompt, done, limit, held)
        candidates = requests(prompt, None, limit)
        started = perf_counter()
        kept = asked.reserve_blocks(running, candidates, step)
        assert len(kept) == num + 1
        return perf_counter() - started

    assert min(once() for _ in range(7)) < 0.005
