"""Every answer is checked, and a policy that fails costs itself the decision only."""

from asyncio import CancelledError
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs

from cadenza.policies import PreemptionCosts, RequestColumns, StepView, hookimpl
from cadenza.policies.builtin import BUILTIN
from cadenza.policies.decisions import Decisions
from cadenza.policies.profile import Profile
from cadenza.testing import Driver, oracle
from tests.policies.views import STEP, columns, requests

WAITING = columns(arrival=[10, 11], overtakes=[0, 64])
RUNNING = columns(
    admission=[0, 1],
    priority=[0, 0],
    generated_tokens=[0, 0],
    max_tokens=[10, 10],
)
CANDIDATE = columns(priority=[0])
COSTS = PreemptionCosts(
    recompute_tokens=np.array([8, 8]),
    recompute_s=np.array([9.0, 0.0]),
    swap_blocks=np.array([2, 2]),
    swap_s=np.array([1.0, 1.0]),
    free_host_blocks=4,
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

        @hookimpl
        def reserve_blocks(
            self, running: RequestColumns, candidates: RequestColumns, step: StepView
        ) -> Any:
            return answer

        @hookimpl
        def select_victims(self, running: RequestColumns, step: StepView) -> Any:
            return answer

        @hookimpl
        def allow_displacement(
            self, candidate: RequestColumns, running: RequestColumns, step: StepView
        ) -> Any:
            return answer

        @hookimpl
        def choose_preemption(
            self, victims: RequestColumns, costs: PreemptionCosts, step: StepView
        ) -> Any:
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
        [],
        [np.array([1.0, 2.0])],
        [np.array([1.0, 2.0]), "junk"],
        "fcfs",
    ],
    ids=repr,
)
def test_a_bad_score_falls_back_to_the_default_and_counts(answer: Any):
    decisions = decisions_with(answer, "order_admissions")

    assert decisions.order_admissions(WAITING, STEP).tolist() == [10.0, 11.0]
    assert decisions.faults == 1


def ask(decisions: Decisions, hook: str) -> np.ndarray:
    """One call of a hook that is neither an order nor a guard."""
    match hook:
        case "reserve_blocks":
            return decisions.reserve_blocks(RUNNING, RUNNING, STEP)
        case "select_victims":
            return decisions.select_victims(RUNNING, STEP)
        case "allow_displacement":
            return decisions.allow_displacement(CANDIDATE, RUNNING, STEP)
        case _:
            return decisions.choose_preemption(RUNNING, COSTS, STEP)


FALLBACKS = {
    "reserve_blocks": [2, 3, 3],
    "select_victims": [0.0, -1.0],
    "allow_displacement": [0.0, 0.0],
    "choose_preemption": [True, False],
}
TWO_NUMBERS = ("select_victims", "allow_displacement")


@pytest.mark.parametrize(
    ("hook", "answer"),
    [
        *((hook, wrong) for hook in FALLBACKS for wrong in (Raises, [0, 0], [], np.zeros((2, 2)))),
        *((hook, wrong) for hook in TWO_NUMBERS for wrong in (np.zeros(3), np.array([1, np.nan]))),
        *((hook, np.array([True, False])) for hook in TWO_NUMBERS),
        ("select_victims", np.array([1, -np.inf])),
        ("reserve_blocks", np.array([1, 2])),
        ("reserve_blocks", np.array([1.0, 2.0, 3.0])),
        ("reserve_blocks", np.array([1, -1, 3])),
        ("choose_preemption", np.array([1, 0])),
        ("choose_preemption", np.array([True, False, True])),
        ("choose_preemption", np.array([np.nan, 0.0])),
    ],
    ids=repr,
)
def test_a_wrong_answer_costs_the_policy_the_decision(hook: str, answer: Any):
    decisions = decisions_with(answer, hook)

    assert ask(decisions, hook).tolist() == FALLBACKS[hook]
    assert decisions.faults == 1


RIGHT = {
    "reserve_blocks": np.array([1, 2, 3]),
    "select_victims": np.array([1.0, 2.0]),
    "allow_displacement": np.array([1.0, 2.0]),
    "choose_preemption": np.array([False, True]),
}


@pytest.mark.parametrize("rest", [[], ["junk"]], ids=repr)
@pytest.mark.parametrize("hook", RIGHT)
def test_a_right_answer_in_a_list_is_a_wrong_one(hook: str, rest: list[str]):
    decisions = decisions_with([RIGHT[hook], *rest], hook)

    assert ask(decisions, hook).tolist() == FALLBACKS[hook]
    assert decisions.faults == 1


@pytest.mark.parametrize(
    ("hook", "answer", "dtype"),
    [
        ("reserve_blocks", np.array([1, 2, 0], dtype=np.uint8), np.int64),
        ("select_victims", np.array([np.inf, 2.0]), np.float64),
        ("allow_displacement", np.array([np.inf, -np.inf]), np.float64),
        ("allow_displacement", np.array([-3, 2]), np.float64),
        ("choose_preemption", np.array([False, True]), np.bool_),
    ],
    ids=repr,
)
def test_a_right_answer_is_passed_on_as_the_core_wants_it(hook: str, answer: Any, dtype: type):
    decisions = decisions_with(answer, hook)

    passed = ask(decisions, hook)

    assert passed.dtype == dtype
    assert passed.tolist() == answer.tolist()
    assert decisions.faults == 0


def test_displacement_need_not_be_asked_under_the_default():
    assert not Decisions(Profile()).may_displace
    assert not Decisions(Profile({"order_admissions": "priority"})).may_displace
    assert Decisions(Profile({"allow_displacement": "strict-priority"})).may_displace


def listening(told: list[list[int]], error: type[BaseException] | None = None) -> type:
    class Listens:
        @hookimpl
        def select_victims(self, running: RequestColumns, step: StepView) -> None:
            return None

        @hookimpl
        def order_admissions(self, waiting: RequestColumns, step: StepView) -> None:
            return None

        @hookimpl
        def on_finished(self, finished: RequestColumns, step: StepView) -> Any:
            told.append(finished.generated_tokens.tolist())
            if error:
                raise error
            return "ignored"

    return Listens


FINISHED = columns(generated_tokens=[3, 4])


def test_nobody_listens_under_the_defaults():
    assert not Decisions(Profile()).observes_finished


def test_an_observer_is_told_whatever_it_was_chosen_for():
    told: list[list[int]] = []
    policies = {**BUILTIN, "mine": listening(told)}
    decisions = Decisions(Profile({"select_victims": "mine"}, policies))

    assert decisions.observes_finished
    decisions.on_finished(FINISHED, STEP)

    assert told == [[3, 4]]
    assert decisions.faults == 0


def test_the_same_instance_is_told_and_asked():
    decisions = Decisions(Profile({"reserve_blocks": "past-future"}))
    nobody = requests([])
    waiting = requests([1], max_tokens=[100])

    before = decisions.reserve_blocks(nobody, waiting, STEP)
    decisions.on_finished(columns(generated_tokens=[10] * 100), STEP)

    assert before.tolist() == [0, 10]
    assert decisions.reserve_blocks(nobody, waiting, STEP).tolist() == [0, 1]


def test_a_policy_chosen_twice_is_told_once():
    told: list[list[int]] = []
    chosen = {"select_victims": "mine", "order_admissions": "mine"}

    Decisions(Profile(chosen, {**BUILTIN, "mine": listening(told)})).on_finished(FINISHED, STEP)

    assert told == [[3, 4]]


@pytest.mark.parametrize("error", [Raises, SystemExit, CancelledError])
def test_a_fault_of_one_observer_costs_the_others_nothing(error: type[BaseException]):
    first: list[list[int]] = []
    second: list[list[int]] = []
    policies = {**BUILTIN, "a": listening(first, error), "b": listening(second, error)}
    decisions = Decisions(Profile({"select_victims": "a", "order_admissions": "b"}, policies))

    decisions.on_finished(FINISHED, STEP)

    assert first == second == [[3, 4]]
    assert decisions.faults == 2


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


@pytest.mark.parametrize(
    "answer", [np.array([1, 0]), [], [np.array([True, True])], [True, True]], ids=repr
)
def test_a_guard_that_answers_wrongly_does_not_count(answer: Any):
    decisions = decisions_with(answer, "guard_starvation")

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
        for step_id in range(3):
            step = replace(STEP, step_id=step_id, now_s=40.0 * step_id)
            decisions.order_admissions(WAITING, step)

    assert decisions.faults == 3
    assert [entry["event"] for entry in logs] == ["policy fault"]


def test_requests_are_served_whatever_a_policy_raises():
    policies = {**BUILTIN, "mine": answering(Raises)}
    driver = Driver(Profile({"order_admissions": "mine"}, policies))
    driver.add(1, [1, 2, 3])

    driver.run()

    assert driver.tokens[1] == oracle([1, 2, 3], 4)
    assert driver.scheduler.statistics().policy_faults == 1
