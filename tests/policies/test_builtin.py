"""The rules of the built-in policies, on hand-made columns."""

from dataclasses import replace

import numpy as np
import pytest

from cadenza.policies import RequestColumns, StepView
from cadenza.policies.builtin import BoundedOvertake, Fcfs, Newest, NewTokenRatio, NoReservation
from cadenza.policies.builtin.bounded_overtake import MAX_OVERTAKES
from cadenza.policies.builtin.new_token_ratio import DECAY_STEPS, FLOOR_RATIO, INITIAL_RATIO

STEP = StepView(
    step_id=0,
    now_s=0.0,
    free_blocks=100,
    total_blocks=100,
    block_size=10,
    free_seats=8,
    token_budget=64,
    preemptions=0,
)


def columns(**values: list[int]) -> RequestColumns:
    arrays = {name: np.array(column) for name, column in values.items()}
    return RequestColumns(arrays, np.arange(len(next(iter(arrays.values())))))


NOBODY = columns(max_tokens=[], generated_tokens=[])


def test_fcfs_scores_by_arrival():
    assert Fcfs().order_admissions(columns(arrival=[4, 2]), STEP).tolist() == [4.0, 2.0]


def test_newest_scores_the_latest_admission_lowest():
    assert Newest().select_victims(columns(admission=[0, 7, 3]), STEP).argmin() == 1


def test_a_request_starves_at_the_bound_not_before():
    waiting = columns(overtakes=[0, MAX_OVERTAKES - 1, MAX_OVERTAKES])

    assert BoundedOvertake().guard_starvation(waiting, STEP).tolist() == [False, False, True]


def test_no_reservation_reserves_nothing():
    assert NoReservation().reserve_blocks(NOBODY, columns(request=[1, 2]), STEP).tolist() == [0] * 3


def test_the_ratio_reserves_a_share_of_what_may_come():
    running = columns(max_tokens=[100], generated_tokens=[0])
    candidates = columns(max_tokens=[50, 100], generated_tokens=[0, 90])

    kept = NewTokenRatio().reserve_blocks(running, candidates, STEP)

    assert kept.tolist() == [7, 11, 12]  # 70, 70 + 35, 70 + 35 + 7 tokens


def test_the_ratio_decays_to_its_floor_with_the_steps():
    policy = NewTokenRatio()
    policy.reserve_blocks(NOBODY, NOBODY, replace(STEP, step_id=DECAY_STEPS // 2))
    assert policy.ratio == pytest.approx((INITIAL_RATIO + FLOOR_RATIO) / 2)

    policy.reserve_blocks(NOBODY, NOBODY, replace(STEP, step_id=10 * DECAY_STEPS))
    assert policy.ratio == FLOOR_RATIO


def test_a_preemption_raises_the_ratio_and_never_lowers_it():
    policy = NewTokenRatio()
    late = columns(max_tokens=[100], generated_tokens=[75])
    policy.reserve_blocks(late, NOBODY, replace(STEP, preemptions=1))
    assert policy.ratio == pytest.approx(0.95)

    early = columns(max_tokens=[100], generated_tokens=[0])
    policy.reserve_blocks(early, NOBODY, replace(STEP, preemptions=2))
    assert policy.ratio == pytest.approx(0.95)
