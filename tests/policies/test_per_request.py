"""Policies that are written for one request at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cadenza.policies import RequestColumns, StepView, hookimpl, per_request
from cadenza.policies.builtin import BUILTIN
from cadenza.policies.contract import faults_of, hooks_of
from cadenza.policies.decisions import Decisions
from cadenza.policies.profile import Profile
from cadenza.testing import Driver, PolicyConformance
from cadenza.testing.tables import request_columns, step_view

STEP = step_view()

MOST_NEW, MOST_AGAIN = 1024, 512


class ShortPrompts:
    """Those with short prompts first; of victims those with long ones, unless they are old."""

    name = "short-prompts"

    @hookimpl
    @per_request
    def order_admissions(self, request: Any, step: StepView) -> float:
        return request.prompt_tokens + step.now_s

    @hookimpl
    @per_request
    def select_victims(self, request: Any) -> float:
        return -request.prompt_tokens if request.preemptions else request.arrival_s


class TestShortPrompts(PolicyConformance):
    policy = ShortPrompts


class Counting:
    """Writes down whom it is asked about."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    @per_request
    def order_admissions(self, request: Any) -> float:
        self.asked.append(request.request)
        return 10.0 * request.request + request.priority

    def score(self, ids: list[int], priority: int = 0) -> list[float]:
        self.asked.clear()
        requests: Any = np.array(ids, dtype=np.int64)
        waiting = request_columns(request=requests, priority=[priority] * len(ids))
        return self.order_admissions(waiting, STEP).tolist()


def test_requests_enter_in_the_order_of_their_scores():
    policies = {**BUILTIN, "mine": ShortPrompts}
    driver = Driver(Profile({"order_admissions": "mine"}, policies), max_num_seqs=1)
    for request, length in enumerate((9, 3, 7)):
        driver.add(request, [1] * length, max_tokens=1)
    driver.run()

    assert driver.admitted == [1, 2, 0]
    assert driver.decisions.faults == 0


def test_a_class_with_it_is_a_policy_like_any_other():
    assert hooks_of(ShortPrompts) == ("order_admissions", "select_victims")
    assert faults_of(ShortPrompts) == ()
    assert ShortPrompts.order_admissions.__qualname__ == "ShortPrompts.order_admissions"


def test_the_markers_may_stand_in_either_order():
    class Reversed:
        name = "reversed"

        @per_request
        @hookimpl
        def order_admissions(self, request: Any, step: StepView) -> float:
            return 0.0

    assert hooks_of(Reversed) == ("order_admissions",)
    assert faults_of(Reversed) == ()


def test_a_request_has_columns_as_plain_numbers():
    seen: list[object] = []

    class Reads:
        @per_request
        def order_admissions(self, request: Any, step: StepView) -> float:
            seen.extend((request.priority, request.deadline_s, request.parked, step.step_id))
            seen.append(repr(request))
            return request.remaining_prefill

    scores = Reads().order_admissions(
        request_columns(request=[7], priority=[3], prompt_tokens=[20]), STEP
    )

    assert scores.tolist() == [20.0]
    assert seen == [3, float("inf"), False, 0, "<request 7>"]
    assert [type(each) for each in seen[:3]] == [int, float, bool]


def test_a_column_may_be_read_for_some_requests_only():
    class Reads:
        @per_request
        def order_admissions(self, request: Any) -> float:
            return request.max_tokens if request.priority else request.arrival

    policy = Reads()
    for priorities in ([0, 0, 0], [0, 5, 0], [5, 0, 5]):
        waiting = request_columns(priority=priorities, max_tokens=[70, 80, 90])
        wanted = [(70, 80, 90)[at] if each else at for at, each in enumerate(priorities)]
        assert policy.order_admissions(waiting, STEP).tolist() == wanted


def test_a_misspelt_column_is_told_with_the_right_ones():
    class Misspelt:
        @hookimpl
        @per_request
        def order_admissions(self, request: Any) -> float:
            return request.promt_tokens

    decisions = Decisions(Profile({"order_admissions": "mine"}, {**BUILTIN, "mine": Misspelt}))

    assert decisions.order_admissions(request_columns(arrival=[4, 5]), STEP).tolist() == [4.0, 5.0]
    (error,) = (each.last_error for each in decisions._runner.tallies.values() if each.faults)
    assert "'promt_tokens' (did you mean 'prompt_tokens'?)" in error


@pytest.mark.parametrize(
    ("said", "told"), [(None, "None"), ("1", "'1'"), (True, "True"), ([1.0], r"\[1.0\]")]
)
def test_what_is_no_number_is_told(said: Any, told: str):
    class Says:
        @per_request
        def order_admissions(self, request: Any) -> float:
            return said

    with pytest.raises(TypeError, match=f"order_admissions must return a number, not {told}"):
        Says().order_admissions(request_columns(arrival=[0]), STEP)


def test_one_that_is_no_number_among_others_is_told():
    class Says:
        @per_request
        def order_admissions(self, request: Any) -> float:
            return 1.0 if request.arrival else None  # type: ignore[return-value]

    with pytest.raises(TypeError, match="not None"):
        Says().order_admissions(request_columns(arrival=[1, 0]), STEP)


def test_nan_is_a_fault_like_any_other():
    class Says:
        @hookimpl
        @per_request
        def select_victims(self, request: Any) -> float:
            return float("nan")

    decisions = Decisions(Profile({"select_victims": "mine"}, {**BUILTIN, "mine": Says}))

    assert decisions.select_victims(request_columns(admission=[3, 4]), STEP).tolist() == [
        -3.0,
        -4.0,
    ]
    assert decisions.faults == 1


def test_other_hooks_and_arguments_are_refused():
    with pytest.raises(TypeError, match="for order_admissions and select_victims, not for reserve"):

        @per_request
        def reserve_blocks(self: Any, request: Any) -> float:
            return 0.0

    with pytest.raises(TypeError, match=r"order_admissions takes \(self, waiting, step\); with"):

        @per_request
        def order_admissions(self: Any, waiting: RequestColumns, step: StepView) -> float:
            return 0.0


def test_scores_are_remembered_and_renewed_in_turn():
    policy, ids = Counting(), list(range(1000))
    assert policy.score(ids) == [10.0 * each for each in ids]
    assert len(policy.asked) == 1000

    renewed = policy.score(ids, priority=1)
    first = set(policy.asked)
    assert len(policy.asked) == len(first) == MOST_AGAIN
    assert renewed == [10.0 * each + (each in first) for each in ids]

    assert policy.score(ids, priority=1) == [10.0 * each + 1 for each in ids]
    assert {*range(1000)} - first <= {*policy.asked}


def test_new_requests_are_scored_at_once_wherever_they_stand():
    policy = Counting()
    policy.score(list(range(2000, 2600)))
    ids = [*range(2599, 1999, -1), 5, 9000]

    assert policy.score(ids) == [10.0 * each for each in ids]
    assert {5, 9000} <= {*policy.asked}
    assert len(policy.asked) == MOST_AGAIN + 2


def test_those_that_are_gone_are_forgotten():
    policy = Counting()
    policy.score(list(range(700)))
    policy.score(list(range(1, 700)))
    policy.score(list(range(700)), priority=1)

    assert 0 in policy.asked
    assert policy.score([], priority=1) == []
    assert policy.score([3]) == [30.0]


def test_of_a_crowd_the_earliest_are_scored_and_the_others_wait():
    policy, num = Counting(), 2 * MOST_NEW + 10
    arrivals = np.random.default_rng(0).permutation(num)
    waiting = request_columns(request=list(range(num)), arrival=arrivals.tolist())
    for calls in (1, 2, 3):
        scores = policy.order_admissions(waiting, STEP)
        early = arrivals < calls * MOST_NEW
        assert (scores[early] == 10.0 * np.flatnonzero(early)).all()
        assert np.isposinf(scores[~early]).all()


@pytest.mark.parametrize("apart", [1, 300, 1 << 40])
def test_scores_follow_their_requests_through_any_change(apart: int):
    """Numbers far apart are looked up in another way than those that are close."""
    rng, known = np.random.default_rng(0), set[int]()
    policy = Counting()
    for _ in range(50):
        ids = (7 + apart * rng.choice(40, rng.integers(0, 35), replace=False)).tolist()
        assert policy.score(ids) == [10.0 * each for each in ids]
        assert {*ids} - known <= {*policy.asked}
        known = {*ids}


def test_instances_and_hooks_do_not_share_their_scores():
    first, second = ShortPrompts(), ShortPrompts()
    short, long = (
        request_columns(prompt_tokens=[1]),
        request_columns(prompt_tokens=[50], arrival_s=[3.0]),
    )

    assert first.order_admissions(short, STEP).tolist() == [1.0]
    assert second.order_admissions(long, STEP).tolist() == [50.0]
    assert first.select_victims(long, STEP).tolist() == [3.0]
