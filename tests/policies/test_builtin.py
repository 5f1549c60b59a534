"""The rules of the default policies and their simplest kin, on hand-made columns.

Other orders, reservations, and ways to preempt have files of their own.
"""

import numpy as np
import pytest

from cadenza.policies.builtin import (
    BUILTIN,
    BoundedOvertake,
    Fcfs,
    LowestPriority,
    Newest,
    Nobody,
    StrictPriority,
)
from cadenza.policies.builtin.bounded_overtake import MAX_OVERTAKES
from tests.policies.views import STEP, columns


def test_every_policy_goes_by_its_own_name():
    assert {name: policy.name for name, policy in BUILTIN.items()} == {
        name: name for name in BUILTIN
    }


def test_fcfs_scores_by_arrival():
    assert Fcfs().order_admissions(columns(arrival=[4, 2]), STEP).tolist() == [4.0, 2.0]


def test_newest_scores_the_latest_admission_lowest():
    assert Newest().select_victims(columns(admission=[0, 7, 3]), STEP).argmin() == 1


def test_the_lowest_priority_is_the_largest_number_then_the_newest_admission():
    running = columns(priority=[0, 9, -4, 9, 0], admission=[4, 1, 0, 3, 2])

    scores = LowestPriority().select_victims(running, STEP)

    assert np.argsort(scores).tolist() == [3, 1, 0, 4, 2]


def test_nobody_displaces_nobody():
    candidate, running = columns(priority=[-9]), columns(priority=[0, 9])

    assert Nobody().allow_displacement(candidate, running, STEP).tolist() == [0.0, 0.0]


def test_only_a_strictly_better_priority_displaces():
    running = columns(priority=[3, 2, 1, -7])

    margins = StrictPriority().allow_displacement(columns(priority=[2]), running, STEP)

    assert margins.tolist() == [1.0, 0.0, -1.0, -9.0]


@pytest.mark.parametrize("ours", [-(2**31), 0, 2**31 - 1])
@pytest.mark.parametrize("theirs", [-(2**31), 0, 2**31 - 1])
def test_no_two_requests_may_displace_each_other(ours: int, theirs: int):
    def margin(candidate: int, running: int) -> float:
        return StrictPriority().allow_displacement(
            columns(priority=[candidate]), columns(priority=[running]), STEP
        )[0]

    assert margin(ours, theirs) == -margin(theirs, ours)


def test_a_request_starves_at_the_bound_not_before():
    waiting = columns(overtakes=[0, MAX_OVERTAKES - 1, MAX_OVERTAKES])

    assert BoundedOvertake().guard_starvation(waiting, STEP).tolist() == [False, False, True]
