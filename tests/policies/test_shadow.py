"""A shadow is asked and told what the live policies are, and changes nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest

from cadenza.policies import Refusal, RequestColumns, hookimpl
from cadenza.policies.builtin import BUILTIN, DEFAULTS
from cadenza.policies.contract import FRONT_HOOKS
from cadenza.policies.decisions import Decisions
from cadenza.policies.profile import Profile
from cadenza.policies.runner import STRIKES, PolicyRunner
from cadenza.policies.shadow import (
    Compared,
    Shadow,
    ShadowedDecisions,
    ShadowedFrontDecisions,
)
from cadenza.policies.warm_up import made_up_views
from cadenza.testing import Driver
from tests.policies.views import STEP, whole

VIEWS = made_up_views()


class Own:
    """Answers each hook with what the test says; notes what it is told."""

    answers: ClassVar[dict[str, Any]] = {}
    told: ClassVar[list[tuple[str, list[int]]]] = []

    @hookimpl
    def order_admissions(self) -> Any:
        return self.answers["order_admissions"]

    @hookimpl
    def reserve_blocks(self) -> Any:
        return self.answers["reserve_blocks"]

    @hookimpl
    def choose_preemption(self) -> Any:
        return self.answers["choose_preemption"]

    @hookimpl
    def guard_starvation(self) -> Any:
        return self.answers["guard_starvation"]

    @hookimpl
    def on_finished(self, finished: RequestColumns) -> None:
        self.told.append(("on_finished", finished.request.tolist()))


POLICIES = {**BUILTIN, "own": Own}


@pytest.fixture(autouse=True)
def fresh() -> None:
    Own.answers, Own.told = {}, []


class Watched:
    """Live decisions with a shadow beside them."""

    def __init__(self, *hooks: str, live: Profile | None = None) -> None:
        shadow = Profile(dict.fromkeys(hooks, "own"), POLICIES)
        live = live or Profile()
        self.live, self.shadow = PolicyRunner(live), PolicyRunner(shadow)
        self.decisions = ShadowedDecisions(live, self.live, Shadow(shadow, self.shadow))

    def compared(self, hook: str) -> Compared:
        return next(each for each in self.decisions.comparison if each.hook == hook)


def test_an_order_by_hand():
    """Three wait in the order of arrival; the shadow turns two round, then agrees, then fails."""
    watched = Watched("order_admissions")
    waiting = whole(arrival=[1, 2, 3], overtakes=[0, 0, 0])
    answers: list[Any] = [np.array([1.0, 3.0, 2.0]), np.array([1, 2, 3]), np.array([np.nan] * 3)]
    answers.append(np.array([2.0, 1.0, 3.0]))
    for step_id, answer in enumerate(answers):
        Own.answers["order_admissions"] = answer
        scores = watched.decisions.order_admissions(waiting, replace(STEP, step_id=step_id))
        assert scores.tolist() == [1.0, 2.0, 3.0]

    compared = watched.compared("order_admissions")
    assert (compared.asked, compared.unanswered) == (4, 1)
    assert (compared.differed, compared.first_differed) == (2, 1)
    assert compared.mean == pytest.approx((2 / 4 + 0 + 2 / 4) / 3)


def test_a_reservation_a_mask_and_a_guard_by_hand():
    watched = Watched("reserve_blocks", "choose_preemption", "guard_starvation")
    plain = Decisions(Profile())
    waiting, running, costs, step = (
        VIEWS[name] for name in ("waiting", "running", "costs", "step")
    )
    reserved = plain.reserve_blocks(running, waiting, step)
    swapped = plain.choose_preemption(running, costs, step)
    Own.answers = {
        "reserve_blocks": reserved + 2,
        "choose_preemption": swapped ^ np.array([True, False, False]),
        "guard_starvation": np.array([False, True, True]),
    }

    decisions = watched.decisions
    assert (decisions.reserve_blocks(running, waiting, step) == reserved).all()
    assert (decisions.choose_preemption(running, costs, step) == swapped).all()
    assert not decisions.guard_starvation(waiting, step).any()

    assert watched.compared("reserve_blocks").mean == 2.0
    assert watched.compared("choose_preemption").mean == pytest.approx(1 / 3)
    assert watched.compared("guard_starvation").mean == pytest.approx(2 / 3)
    assert [each.differed for each in decisions.comparison if each.asked] == [1, 1, 1]


def test_every_decision_is_in_the_report():
    assert [each.hook for each in Watched().decisions.comparison] == [
        hook for hook in DEFAULTS if hook not in FRONT_HOOKS
    ]


def test_faults_and_quarantine_are_its_own():
    watched = Watched("order_admissions")
    for step_id in range(STRIKES + 1):
        watched.decisions.order_admissions(VIEWS["waiting"], replace(STEP, step_id=step_id))

    assert watched.shadow.quarantined == ("own",)
    assert watched.shadow.faults == STRIKES
    assert watched.live.faults == watched.decisions.faults == 0
    assert watched.live.quarantined == ()
    compared = watched.compared("order_admissions")
    assert (compared.asked, compared.unanswered, compared.mean) == (STRIKES + 1, STRIKES + 1, 0.0)


def test_observers_of_the_shadow_are_told():
    watched = Watched("order_admissions")
    assert watched.decisions.observes("on_finished")
    assert not watched.decisions.observes("on_admitted")

    watched.decisions.on_finished(VIEWS["finished"], STEP)

    assert Own.told == [("on_finished", [1, 2, 3])]


def serve(driver: Driver) -> None:
    """More than fits, so that every decision is asked for."""
    for request in range(20):
        prompt = [request + 1] * (5 + request % 7)
        driver.add(request, prompt, max_tokens=6 + request % 5, priority=-request)
    driver.run()


def test_a_scheduler_with_a_shadow_decides_as_without():
    """The shadow would displace, turn the order round and let others leave."""
    preset = {
        "order_admissions": "priority",
        "allow_displacement": "strict-priority",
        "select_victims": "lowest-priority",
        "reserve_blocks": "none",
    }
    live = Profile({"reserve_blocks": "none"})
    plain = Driver(live, num_blocks=16)
    serve(plain)

    shadowed = Driver(Profile({"reserve_blocks": "none"}), num_blocks=16)
    shadow = Profile(preset)
    decisions = ShadowedDecisions(
        Profile({"reserve_blocks": "none"}),
        PolicyRunner(live),
        Shadow(shadow, PolicyRunner(shadow)),
    )
    shadowed.scheduler.use(decisions)
    serve(shadowed)

    assert shadowed.tokens == plain.tokens
    assert shadowed.admitted == plain.admitted
    assert shadowed.preempted == plain.preempted
    report = {each.hook: each for each in decisions.comparison}
    assert report["order_admissions"].first_differed > 0
    assert report["select_victims"].differed > 0
    assert report["allow_displacement"].asked == 0
    assert report["reserve_blocks"].differed == 0 < report["reserve_blocks"].asked


@pytest.mark.parametrize(
    ("hook", "policy", "is_asked"),
    [
        ("predict_lengths", "observed-lengths", "predicts_lengths"),
        ("plan_budget", "tpot-target", "plans_budget"),
        ("rank_cached_blocks", "leaves-first", "ranks_blocks"),
    ],
)
def test_a_shadow_is_asked_what_the_live_profile_alone_would_not_be(
    hook: str, policy: str, is_asked: str
):
    live, shadow = Profile(), Profile({hook: policy})
    decisions = ShadowedDecisions(live, PolicyRunner(live), Shadow(shadow, PolicyRunner(shadow)))
    driver = Driver(decisions=decisions, num_blocks=8, max_model_len=32)
    assert getattr(decisions, is_asked)
    for request in range(6):
        driver.add(request, [request + 1] * 9, max_tokens=2)
        driver.run()

    (compared,) = (each for each in decisions.comparison if each.hook == hook)
    assert compared.asked > 0
    assert compared.unanswered == decisions.faults == 0


class Judging:
    """Answers the front's hooks with what the test says."""

    answers: ClassVar[dict[str, Any]] = {}

    @hookimpl
    def gate_arrivals(self) -> Any:
        return self.answers["gate_arrivals"]

    @hookimpl
    def shed_load(self) -> Any:
        return self.answers["shed_load"]


class Front:
    """The front's decisions with a shadow beside them, asked about three arrivals."""

    def __init__(self, *hooks: str, live: Profile | None = None) -> None:
        shadow = Profile(dict.fromkeys(hooks, "judging"), {**BUILTIN, "judging": Judging})
        live = live or Profile()
        self.live, self.shadow = PolicyRunner(live), PolicyRunner(shadow)
        self.decisions = ShadowedFrontDecisions(live, self.live, Shadow(shadow, self.shadow))
        self._asked = 0

    def ask(self, hook: str, answer: Any) -> Any:
        Judging.answers[hook] = answer
        self._asked += 1
        service = replace(VIEWS["service"], step_id=self._asked)
        return getattr(self.decisions, hook)(VIEWS["arrivals"], service)

    def compared(self, hook: str) -> Compared:
        return next(each for each in self.decisions.comparison if each.hook == hook)


def test_gates_by_hand():
    front = Front("gate_arrivals")
    refusal = Refusal(reason="no", limit="tenant")
    for answer in (None, [None, refusal, None], "nonsense", [refusal] * 3):
        assert front.ask("gate_arrivals", answer) is None

    compared = front.compared("gate_arrivals")
    assert (compared.asked, compared.unanswered, compared.differed) == (4, 1, 2)
    assert compared.mean == pytest.approx(2 / 3)
    assert (front.live.faults, front.shadow.faults) == (0, 1)


def test_whom_to_shed_by_hand():
    """The newcomer in the live profile's eyes; of the others equals, of whom the latest goes."""
    front = Front("shed_load")
    for answer in ([0.0, 0.0, 1.0], [5.0, 0.0, 9.0], [2.0, 1.0, 0.0], [0.0, np.inf, 1.0]):
        assert front.ask("shed_load", np.array(answer)).tolist() == [0.0, 0.0, 1.0]

    compared = front.compared("shed_load")
    assert (compared.asked, compared.unanswered) == (4, 0)
    assert (compared.differed, compared.first_differed) == (3, 2)


@pytest.mark.parametrize("hook", FRONT_HOOKS)
def test_what_the_shadow_may_judge_is_asked_about(hook: str):
    plain = ShadowedFrontDecisions(
        Profile(), PolicyRunner(Profile()), Shadow(Profile(), PolicyRunner(Profile()))
    )
    assert (plain.may_refuse, plain.may_shed) == (False, False)
    decisions = Front(hook).decisions
    assert (decisions.may_refuse, decisions.may_shed) == (
        hook == "gate_arrivals",
        hook == "shed_load",
    )


def test_every_decision_of_the_front_is_in_the_report():
    assert {each.hook for each in Front().decisions.comparison} == {*FRONT_HOOKS}
