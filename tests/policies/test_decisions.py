"""Every answer is checked, and a policy that fails costs itself the decision only."""

from asyncio import CancelledError
from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs

from cadenza.policies import RequestColumns, StepView, hookimpl
from cadenza.policies.builtin import BUILTIN
from cadenza.policies.decisions import Decisions
from cadenza.policies.profile import Profile
from cadenza.testing import Driver, oracle

STEP = StepView(
    step_id=1,
    now_s=0.0,
    free_blocks=4,
    total_blocks=4,
    block_size=4,
    free_seats=2,
    token_budget=8,
    preemptions=0,
)
WAITING = RequestColumns(
    {"arrival": np.array([10, 11]), "overtakes": np.array([0, 64])}, np.array([0, 1])
)


class Raises(Exception):
    pass


def answering(answer: Any) -> type:
    class Policy:
        @hookimpl
        def order_admissions(self, waiting: RequestColumns, step: StepView) -> Any:
            if isinstance(answer, type) and issubclass(answer, BaseException):
                raise answer
            return answer

        @hookimpl
        def guard_starvation(self, waiting: RequestColumns, step: StepView) -> Any:
            return answer

    return Policy


def decisions_with(answer: Any, *hooks: str) -> Decisions:
    policies = {**BUILTIN, "mine": answering(answer)}
    return Decisions(Profile(dict.fromkeys(hooks, "mine"), policies))


@pytest.mark.parametrize(
    "answer",
    [
        Raises,
        RecursionError,
        SystemExit,
        GeneratorExit,
        CancelledError,
        np.ma.masked_array([1.0, 2.0], mask=[True, False]),
        np.array([1.0]),
        np.array([[1.0, 2.0]]),
        np.array([np.nan, 1.0]),
        np.array([-np.inf, 1.0]),
        np.array(["a", "b"]),
        np.array([1, 2], dtype=complex),
        [1.0, 2.0],
        "fcfs",
    ],
    ids=repr,
)
def test_a_bad_score_falls_back_to_the_default_and_counts(answer: Any):
    decisions = decisions_with(answer, "order_admissions")

    assert decisions.order_admissions(WAITING, STEP).tolist() == [10.0, 11.0]
    assert decisions.faults == 1


def test_none_leaves_the_decision_to_the_default_without_a_fault():
    decisions = decisions_with(None, "order_admissions")

    assert decisions.order_admissions(WAITING, STEP).tolist() == [10.0, 11.0]
    assert decisions.faults == 0


def test_infinity_is_an_answer():
    decisions = decisions_with(np.array([np.inf, 0.0]), "order_admissions")

    assert decisions.order_admissions(WAITING, STEP).tolist() == [np.inf, 0.0]
    assert decisions.faults == 0


def test_integers_are_scores():
    decisions = decisions_with(np.array([3, 2]), "order_admissions")

    scores = decisions.order_admissions(WAITING, STEP)

    assert scores.dtype == np.float64
    assert scores.tolist() == [3.0, 2.0]


def test_a_guard_that_answers_with_numbers_does_not_count():
    decisions = decisions_with(np.array([1, 0]), "guard_starvation")

    assert decisions.guard_starvation(WAITING, STEP).tolist() == [False, True]
    assert decisions.faults == 1


def test_a_guard_without_an_opinion_leaves_the_default_its_own():
    decisions = decisions_with(None, "guard_starvation")

    assert decisions.guard_starvation(WAITING, STEP).tolist() == [False, True]
    assert decisions.faults == 0


def test_guards_add_up():
    decisions = decisions_with(np.array([True, False]), "guard_starvation")

    assert decisions.guard_starvation(WAITING, STEP).tolist() == [True, True]


def test_a_policy_keeps_no_hand_on_its_answer():
    answer = np.array([True, False])
    decisions = decisions_with(answer, "guard_starvation")

    decisions.guard_starvation(WAITING, STEP)[:] = False

    assert answer.tolist() == [True, False]


def test_a_fault_is_logged_once_and_counted_always():
    decisions = decisions_with(Raises, "order_admissions")
    with capture_logs() as logs:
        for _ in range(3):
            decisions.order_admissions(WAITING, STEP)

    assert decisions.faults == 3
    assert [entry["event"] for entry in logs] == ["policy fault"]


def test_requests_are_served_whatever_a_policy_raises():
    policies = {**BUILTIN, "mine": answering(Raises)}
    driver = Driver(Profile({"order_admissions": "mine"}, policies))
    driver.add(1, [1, 2, 3])

    driver.run()

    assert driver.tokens[1] == oracle([1, 2, 3], 4)
    assert driver.scheduler.statistics().policy_faults == 1
