"""What the front's hooks may answer, and what becomes of policies that answer something else."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from cadenza.policies import ArrivalColumns, Refusal, ServiceView, hookimpl
from cadenza.policies.builtin import BUILTIN
from cadenza.policies.front_decisions import FrontDecisions, Refused
from cadenza.policies.profile import Profile
from cadenza.policies.runner import STRIKES, PolicyRunner
from cadenza.testing import arrival_columns, service_view
from tests.policies.test_views import WAYS, set_the_shape

SERVICE = service_view()
ARRIVALS = arrival_columns(tenant=[1, 2])
NO = Refusal(reason="No.", limit="tenant")


class Answers:
    """Answers both hooks with what the test wants."""

    def __init__(self, answer: Callable[[Any], Any]) -> None:
        self.answer = answer
        self.asked = 0

    def __call__(self) -> "Answers":
        return self

    @hookimpl
    def gate_arrivals(self, arrivals: ArrivalColumns, service: ServiceView) -> Any:
        self.asked += 1
        return self.answer(arrivals)

    @hookimpl
    def shed_load(self, waiting: ArrivalColumns, service: ServiceView) -> Any:
        self.asked += 1
        return self.answer(waiting)


class Front:
    """Decisions of some policies, and their runner. The first is the one that sheds."""

    def __init__(self, **answers: Callable[[Any], Any]) -> None:
        self.policies = {name: Answers(answer) for name, answer in answers.items()}
        chosen = {"gate_arrivals": tuple(answers), "shed_load": next(iter(answers))}
        profile = Profile(chosen, {**BUILTIN, **self.policies})  # type: ignore[dict-item]
        self.runner = PolicyRunner(profile)
        self.decisions = FrontDecisions(profile, self.runner)
        self.service = SERVICE

    def gate(self) -> Refused | None:
        self.next_occasion()
        return self.decisions.gate_arrivals(ARRIVALS, self.service)

    def shed(self) -> list[float]:
        self.next_occasion()
        return self.decisions.shed_load(ARRIVALS, self.service).tolist()

    def next_occasion(self) -> None:
        self.service = replace(
            self.service, step_id=self.service.step_id + 1, now_s=self.service.now_s + 1
        )


def test_the_default_gate_is_asked_only_if_it_has_a_limit():
    front = Front(mine=lambda _: None)
    front.gate()
    assert {*front.runner.tallies} == {("mine", "gate_arrivals")}

    profile = Profile({"gate_arrivals": "tenant-quota"}, options={"queue-limit": {"max_tokens": 9}})
    runner = PolicyRunner(profile)
    FrontDecisions(profile, runner).gate_arrivals(ARRIVALS, SERVICE)
    assert ("queue-limit", "gate_arrivals") in runner.tallies


@pytest.mark.parametrize("answer", [[None, NO], (NO, None), [NO, replace(NO, reason="Never.")]])
def test_the_first_refusal_is_told(answer: Any):
    assert Front(mine=lambda _: answer).gate() == Refused("mine", NO)


@pytest.mark.parametrize("answer", [None, [None, None]])
def test_no_refusal_is_none(answer: Any):
    front = Front(mine=lambda _: answer)

    assert front.gate() is None
    assert front.runner.faults == 0


def test_nobody_is_asked_behind_the_first_who_refuses():
    front = Front(first=lambda _: None, second=lambda _: [NO, None], third=lambda _: [NO, NO])

    refused = front.gate()

    assert refused is not None
    assert refused.gate == "second"
    assert [front.policies[name].asked for name in ("first", "second", "third")] == [1, 1, 0]


def raises(_: Any) -> Any:
    raise RuntimeError


class TextOfItsOwn(str):
    pass


class NumberOfItsOwn(float):
    pass


@dataclass(frozen=True)
class Like:
    reason: str = "No."
    limit: str = "tenant"
    retry_after_s: float = 1.0


WRONG_REFUSALS: dict[str, Any] = {
    "nothing of the kind": [5, None],
    "True": [True, None],
    "a text": ["no", None],
    "an object like one": [Like(), None],
    "too few": [NO],
    "too many": [None, None, None],
    "no list": NO,
    "an array": np.array([None, NO]),
    "a generator": (each for each in (NO, None)),
    "no reason": [replace(NO, reason=""), None],
    "a long reason": [replace(NO, reason="x" * 201), None],
    "a reason of several lines": [replace(NO, reason="a\nb"), None],
    "a reason that UTF-8 cannot encode": [replace(NO, reason="\ud800"), None],
    "a reason that is its own": [replace(NO, reason=TextOfItsOwn("x")), None],
    "no text": [replace(NO, reason=None), None],  # type: ignore[arg-type]
    "another limit": [replace(NO, limit="mine"), None],  # type: ignore[arg-type]
    "a limit of another type": [replace(NO, limit=["tenant"]), None],  # type: ignore[arg-type]
    "a limit that is its own": [replace(NO, limit=TextOfItsOwn("tenant")), None],  # type: ignore[arg-type]
    "a number of its own": [replace(NO, retry_after_s=NumberOfItsOwn(1.0)), None],
    "a negative time": [replace(NO, retry_after_s=-1.0), None],
    "not a number": [replace(NO, retry_after_s=float("nan")), None],
    "no end": [replace(NO, retry_after_s=float("inf")), None],
    "a time of another type": [replace(NO, retry_after_s="1"), None],  # type: ignore[arg-type]
    "the second wrong": [NO, 5],
}


@pytest.mark.parametrize("wrong", WRONG_REFUSALS)
def test_a_wrong_answer_refuses_nobody_and_the_next_gate_is_asked(wrong: str):
    front = Front(mine=lambda _: WRONG_REFUSALS[wrong], other=lambda _: [NO, None])

    refused = front.gate()

    assert refused is not None
    assert refused.gate == "other"
    assert front.runner.tallies["mine", "gate_arrivals"].faults == 1


def test_a_policy_keeps_no_hand_on_its_refusal():
    kept = replace(NO)
    front = Front(mine=lambda _: [kept, None])
    refused = front.gate()
    object.__setattr__(kept, "reason", 5)

    assert refused == Refused("mine", NO)


WRONG_SCORES: dict[str, Any] = {
    "too few": np.zeros(1),
    "a list": [0.0, 1.0],
    "not a number": np.array([0.0, np.nan]),
    "-inf": np.array([0.0, -np.inf]),
    "booleans": np.array([True, False]),
}


@pytest.mark.parametrize("wrong", WRONG_SCORES)
def test_wrong_scores_shed_the_newcomer(wrong: str):
    front = Front(mine=lambda _: WRONG_SCORES[wrong])

    assert front.shed() == [0.0, 1.0]
    assert front.runner.faults == 1


def test_none_leaves_the_choice_to_the_default_and_infinity_is_a_score():
    assert Front(mine=lambda _: None).shed() == [0.0, 1.0]
    assert Front(mine=lambda _: np.array([np.inf, 1])).shed() == [np.inf, 1.0]


@pytest.mark.parametrize("ask", [Front.gate, Front.shed])
def test_who_keeps_failing_is_quarantined_in_both_hooks(ask: Callable[[Front], Any]):
    front = Front(mine=raises)
    for _ in range(STRIKES):
        ask(front)

    assert front.runner.quarantined == ("mine",)
    asked = front.policies["mine"].asked
    assert front.gate() is None
    assert front.shed() == [0.0, 1.0]
    assert front.policies["mine"].asked == asked


def test_who_has_failed_is_not_asked_again_about_the_same_arrival():
    front = Front(mine=raises)
    front.shed()

    assert front.decisions.gate_arrivals(ARRIVALS, front.service) is None

    assert front.policies["mine"].asked == 1


COLUMNS = [name for name in vars(ArrivalColumns) if not name.startswith("_")]


@pytest.mark.parametrize("way", [*WAYS, set_the_shape])
@pytest.mark.parametrize("column", COLUMNS)
def test_nobody_can_spoil_what_others_see(column: str, way: Callable[[Any], None]):
    def vandalise(arrivals: ArrivalColumns) -> None:
        try:
            way(getattr(arrivals, column))
        except Exception:
            return

    front = Front(vandal=vandalise)
    before = {name: getattr(ARRIVALS, name).tolist() for name in COLUMNS}
    front.gate()
    front.shed()

    assert {name: getattr(ARRIVALS, name).tolist() for name in COLUMNS} == before
    assert front.runner.faults == 0


def test_the_service_view_cannot_be_changed():
    with pytest.raises(AttributeError):
        SERVICE.queued = 5  # type: ignore[misc]
