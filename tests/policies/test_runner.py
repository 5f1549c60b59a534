"""What becomes of a policy that fails, on clocks that tests set."""

import gc
import logging
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import structlog
from structlog.testing import capture_logs

from cadenza.policies import RequestColumns, StepView, hookimpl
from cadenza.policies.blame import SIZE, Blame, Culprit, read_blame
from cadenza.policies.builtin import BUILTIN
from cadenza.policies.decisions import Decisions
from cadenza.policies.hook_guard import Disarmed, Interrupted, NoGuard
from cadenza.policies.profile import Profile
from cadenza.policies.runner import FaultCount, PolicyRunner, PolicyUnusable
from cadenza.policies.standing import REST_S
from cadenza.wire.messages import HookUse
from tests.policies.views import STEP, columns

WAITING = columns(arrival=[10, 11], overtakes=[0, 0])
RUNNING = columns(admission=[0, 1])
DEFAULT_ORDER, MY_ORDER = [10.0, 11.0], [2.0, 1.0]
DEFAULT_VICTIMS, MY_VICTIMS = [0.0, -1.0], [5.0, 6.0]


class Machine:
    """A timer, a guard that interrupts on demand, and what policies do."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.computed_s = float("inf")  # by the latest call, as the guard has it
        self.owned_s = float("inf")  # of what the latest call took, as the guard has it
        self.interrupts = False
        self.disarms = False
        self.built = 0
        self.act: Callable[[], Any] = lambda: None  # whenever a hook is called
        self.construct: Callable[[], Any] = lambda: None

    def timer(self) -> float:
        return self.now_s

    def run(self, limit_s: float, call: Callable[..., Any], *arguments: Any) -> Any:
        answer = call(*arguments)
        if self.interrupts:
            self.interrupts = False
            raise Interrupted("mine.py:3 in act")
        if self.disarms:
            self.disarms = False
            raise Disarmed
        return answer

    def taken_s(self) -> float:
        return self.computed_s

    def own_s(self, elapsed_s: float) -> float:
        return min(elapsed_s, self.owned_s)

    def policy(machine) -> type:
        class Policy:
            def __init__(self) -> None:
                machine.construct()
                machine.built += 1
                self.number = machine.built

            @hookimpl
            def order_admissions(self, waiting: RequestColumns, step: StepView) -> Any:
                answer = machine.act()
                return np.array(MY_ORDER) if answer is None else answer

            @hookimpl
            def select_victims(self, running: RequestColumns, step: StepView) -> Any:
                answer = machine.act()
                return np.array(MY_VICTIMS) if answer is None else answer

        return Policy

    def takes(self, seconds: float, then: Callable[[], Any] = lambda: None) -> Callable[[], Any]:
        def act() -> Any:
            self.now_s += seconds
            return then()

        return act


class Asked:
    """Decisions of one policy in two hooks, or of two policies in one each."""

    def __init__(self, *, two: bool = False, refill: float | None = None) -> None:
        self.machine = Machine()
        policies = {**BUILTIN, "mine": self.machine.policy(), "other": self.machine.policy()}
        chosen = {"order_admissions": "mine", "select_victims": "other" if two else "mine"}
        self.memory = bytearray(SIZE)
        profile = Profile(chosen, policies)
        self.runner = PolicyRunner(
            profile,
            timer=self.machine.timer,
            guard=self.machine,
            blame=Blame(self.memory),
            refill=refill,
        )
        self.decisions = Decisions(profile, self.runner)
        self.step = STEP

    def next_step(self, after_s: float = 0.01) -> None:
        self.step = replace(
            self.step, step_id=self.step.step_id + 1, now_s=self.step.now_s + after_s
        )

    def order(self) -> list[float]:
        return self.decisions.order_admissions(WAITING, self.step).tolist()

    def victims(self) -> list[float]:
        return self.decisions.select_victims(RUNNING, self.step).tolist()

    def tally(self, policy: str = "mine", hook: str = "order_admissions") -> Any:
        return self.runner.tallies[policy, hook]

    def fail(self, times: int, after_s: float = 0.01) -> None:
        act, self.machine.act = self.machine.act, raises(ValueError("no"))
        for _ in range(times):
            assert self.order() == DEFAULT_ORDER
            self.next_step(after_s)
        self.machine.act = act


def raises(error: BaseException) -> Callable[[], Any]:
    def act() -> Any:
        raise error

    return act


@pytest.fixture
def asked() -> Asked:
    return Asked()


def test_calls_and_time_are_counted_by_hook(asked: Asked):
    asked.machine.act = asked.machine.takes(0.002)

    assert asked.order() == MY_ORDER
    asked.next_step()
    assert asked.order() == MY_ORDER
    assert asked.victims() == MY_VICTIMS

    assert asked.tally().calls == 2
    assert asked.tally().spent_s == pytest.approx(0.004)
    assert asked.tally(hook="select_victims").calls == 1
    assert asked.runner.faults == 0
    assert asked.runner.take_news() == ()


class Sly(str):
    def __getitem__(self, key: Any) -> Any:
        raise SystemExit


class Unspeakable(Exception):
    def __repr__(self) -> str:
        raise SystemExit


class Verbose(Exception):
    def __repr__(self) -> str:
        return Sly("x" * 5000)


@pytest.mark.parametrize(
    ("act", "error"),
    [
        (raises(ValueError("no")), "ValueError('no')"),
        (raises(SystemExit(3)), "SystemExit(3)"),
        (raises(Unspeakable()), "Unspeakable"),
        (raises(Verbose()), "x" * 200),
        (lambda: np.array([np.nan, 1.0]), "AnswerError('scores must not be NaN or -inf')"),
        (lambda: np.zeros(3), "AnswerError('expected shape (2,), got (3,)')"),
        (lambda: WAITING.arrival.fill(0), "ValueError('assignment destination is read-only')"),
        (lambda: (each for each in ()), None),
    ],
)
def test_a_fault_costs_the_instance_this_step_in_all_its_hooks(
    asked: Asked, act: Callable[[], Any], error: str | None
):
    asked.machine.act = act
    assert asked.order() == DEFAULT_ORDER
    asked.machine.act = lambda: None

    assert asked.order() == DEFAULT_ORDER
    assert asked.victims() == DEFAULT_VICTIMS
    asked.next_step()
    assert asked.order() == MY_ORDER
    assert asked.victims() == MY_VICTIMS

    assert asked.tally().faults == asked.runner.faults == 1
    assert asked.tally().passed_over == asked.tally(hook="select_victims").passed_over == 1
    if error is not None:
        # What a policy raises has a place; what the checks of its answer raise has none
        place = "" if error.startswith("AnswerError") else r" at test_runner\.py:\d+ in .+"
        assert re.fullmatch(re.escape(error) + place, asked.tally().last_error)


def test_hooks_that_gave_no_answer_are_told_with_the_age_of_their_last_fault(asked: Asked):
    asked.machine.now_s = 5.0
    asked.fail(1)
    asked.victims()
    asked.machine.act = raises(ValueError("no"))
    asked.order()
    asked.victims()
    asked.machine.now_s = 7.5

    order, victims = asked.runner.unanswered()
    assert (order.policy, order.hook) == ("mine", "order_admissions")
    assert (order.faults, order.last_fault_age_s, order.passed_over) == (2, 2.5, 0)
    assert (victims.faults, victims.last_fault_age_s, victims.passed_over) == (0, 0.0, 1)


def test_a_fault_of_one_policy_costs_no_other():
    asked = Asked(two=True)
    asked.fail(1)

    assert asked.victims() == MY_VICTIMS


def test_a_policy_that_interrupts_is_at_fault_like_any_other(asked: Asked):
    asked.machine.act = asked.machine.construct = raises(KeyboardInterrupt())

    for _ in range(3):
        assert asked.order() == DEFAULT_ORDER
        asked.next_step()

    assert asked.tally().last_error.startswith("KeyboardInterrupt() at ")
    assert asked.runner.quarantined == ("mine",)
    with pytest.raises(PolicyUnusable):
        asked.runner.release("mine")


def test_without_a_guard_ctrl_c_is_not_the_policys():
    machine, memory = Machine(), bytearray(SIZE)
    profile = Profile({"order_admissions": "mine"}, {**BUILTIN, "mine": machine.policy()})
    runner = PolicyRunner(profile, guard=NoGuard(), blame=Blame(memory))
    machine.act = raises(KeyboardInterrupt())

    with pytest.raises(KeyboardInterrupt):
        Decisions(profile, runner).order_admissions(WAITING, STEP)

    assert read_blame(memory) is None


def test_three_faults_within_a_minute_quarantine_all_hooks(asked: Asked):
    with capture_logs() as logs:
        asked.fail(3, after_s=29.9)

    assert asked.order() == DEFAULT_ORDER
    assert asked.victims() == DEFAULT_VICTIMS
    assert asked.runner.quarantined == ("mine",)
    assert asked.tally().calls == asked.tally().faults == 3
    assert [entry["event"] for entry in logs] == ["policy fault", "policy quarantined"]


def test_three_faults_in_more_than_a_minute_do_not(asked: Asked):
    asked.fail(12, after_s=30.1)

    assert asked.order() == MY_ORDER
    assert asked.runner.quarantined == ()


def test_a_released_policy_is_a_fresh_instance_without_a_past(asked: Asked):
    asked.fail(3)
    asked.runner.release("mine")

    assert asked.order() == MY_ORDER
    assert asked.machine.built == 2
    asked.next_step()
    asked.fail(2)
    assert asked.runner.quarantined == ()
    asked.fail(1)
    assert asked.runner.quarantined == ("mine",)


def test_faults_after_a_release_are_logged_again(asked: Asked):
    asked.fail(3)
    asked.runner.release("mine")
    with capture_logs() as logs:
        asked.fail(2)

    assert [entry["event"] for entry in logs] == ["policy fault"]


def test_release_of_what_is_not_quarantined(asked: Asked):
    asked.order()
    asked.runner.release("mine")
    assert asked.machine.built == 1
    with pytest.raises(KeyError):
        asked.runner.release("nobody's")


@pytest.mark.parametrize("error", [ValueError("broken"), SystemExit()])
def test_what_cannot_be_built_anew_is_not_released(asked: Asked, error: BaseException):
    asked.fail(3)
    asked.machine.construct = raises(error)

    with pytest.raises(PolicyUnusable):
        asked.runner.release("mine")

    assert asked.order() == DEFAULT_ORDER
    assert asked.runner.quarantined == ("mine",)


def test_all_policies_share_one_budget_a_step():
    asked = Asked(two=True)
    asked.machine.act = asked.machine.takes(0.010)
    assert asked.order() == MY_ORDER

    assert asked.victims() == DEFAULT_VICTIMS
    assert asked.tally("other", "select_victims").passed_over == 1
    assert asked.runner.faults == 0
    asked.next_step()
    assert asked.victims() == MY_VICTIMS


def test_who_would_have_too_little_time_is_not_asked_and_the_log_says_so_once():
    asked = Asked(two=True)
    asked.machine.act = asked.machine.takes(0.0085)
    with capture_logs() as logs:
        for _ in range(3):
            assert asked.order() == MY_ORDER
            assert asked.victims() == DEFAULT_VICTIMS
            asked.next_step()

    tally = asked.tally("other", "select_victims")
    assert (tally.calls, tally.passed_over) == (0, 3)
    assert asked.runner.take_news() == ()
    assert [(entry["event"], entry["policy"], entry["left_ms"]) for entry in logs] == [
        ("policy lacks time", "other", 1.5)
    ]


def test_who_has_enough_left_is_asked():
    asked = Asked(two=True)
    asked.machine.act = asked.machine.takes(0.0075)
    assert asked.order() == MY_ORDER
    asked.machine.act = asked.machine.takes(0.001)

    assert asked.victims() == MY_VICTIMS


def test_an_overrun_is_a_fault_whatever_the_answer(asked: Asked):
    asked.machine.act = asked.machine.takes(0.011)

    assert asked.order() == DEFAULT_ORDER

    assert asked.tally().last_error == "took 11.0 ms; a step's policies have 10 ms"
    assert asked.machine.built == 1


def test_an_overrun_of_what_others_left_says_how_much_that_was(asked: Asked):
    asked.machine.act = asked.machine.takes(0.006)
    asked.order()
    asked.victims()

    told = "took 6.0 ms; a step's policies have 10 ms, of which 4.0 were left"
    assert asked.tally(hook="select_victims").last_error == told


def test_an_overrun_at_arrivals_names_their_budget():
    asked = Asked(refill=0.5)
    asked.machine.act = asked.machine.takes(0.011)
    asked.order()

    assert asked.tally().last_error == "took 11.0 ms; all arrivals' policies have 10 ms"


def test_time_in_which_a_policy_waited_for_the_processor_is_not_charged():
    asked = Asked(two=True)
    asked.machine.act = asked.machine.takes(0.0095)
    asked.machine.owned_s = 0.0005

    assert asked.order() == MY_ORDER
    assert asked.victims() == MY_VICTIMS
    assert asked.tally().spent_s == pytest.approx(0.0005)
    assert asked.tally("other", "select_victims").passed_over == 0


@pytest.mark.parametrize("is_asked_for", [False, True])
def test_where_an_error_came_through_is_logged_for_whoever_asks(is_asked_for: bool):
    machine = Machine()
    profile = Profile(
        {"order_admissions": "mine"}, {**BUILTIN, "mine": machine.policy()}, trace=is_asked_for
    )
    level = structlog.make_filtering_bound_logger(logging.INFO)
    with capture_logs() as logs:
        log = structlog.wrap_logger(None, wrapper_class=level)
        runner = PolicyRunner(profile, guard=machine, log=log)
        machine.act = raises(ValueError("no"))
        Decisions(profile, runner).order_admissions(WAITING, STEP)

    (entry,) = (entry for entry in logs if entry["event"] == "policy fault")
    steps = entry.get("trace", "").split(" > ")
    assert ("in order_admissions" in steps[-2] if len(steps) > 1 else False) is is_asked_for


def test_where_an_error_came_through_is_logged_for_debugging(asked: Asked):
    with capture_logs() as logs:
        asked.fail(1)

    assert f"{__file__}:" in logs[0]["trace"]


def test_a_busy_machine_is_no_fault(asked: Asked):
    asked.machine.act = asked.machine.takes(0.049)
    asked.machine.computed_s = 0.001

    assert asked.order() == MY_ORDER
    assert asked.runner.faults == 0


def test_who_waits_for_too_long_is_at_fault_without_computing(asked: Asked):
    asked.machine.act = asked.machine.takes(0.050)
    asked.machine.computed_s = 0.001

    assert asked.order() == DEFAULT_ORDER
    assert asked.runner.faults == 1


def test_who_certainly_waited_for_the_processor_is_never_at_fault(asked: Asked):
    asked.machine.computed_s = asked.machine.owned_s = 0.009
    asked.machine.act = asked.machine.takes(0.080)
    for _ in range(6):
        assert asked.order() == MY_ORDER
        asked.next_step()
    assert asked.runner.faults == 0

    asked.machine.computed_s = asked.machine.owned_s = 0.011
    assert asked.order() == DEFAULT_ORDER
    assert asked.runner.faults == 1


def test_where_nobody_knows_the_machine_is_no_excuse_twice_running(asked: Asked):
    asked.machine.computed_s = 0.001
    asked.machine.act = asked.machine.takes(0.011)
    assert asked.order() == MY_ORDER
    asked.next_step()
    assert asked.order() == DEFAULT_ORDER
    assert asked.runner.faults == 1

    asked.next_step(after_s=0.2)
    asked.machine.act = lambda: None
    assert asked.order() == MY_ORDER
    asked.next_step()
    asked.machine.act = asked.machine.takes(0.011)
    assert asked.order() == MY_ORDER
    assert asked.runner.faults == 1


def interrupt(asked: Asked, computed_s: float, took_s: float = 0.011) -> list[float]:
    asked.machine.computed_s = computed_s
    asked.machine.act = asked.machine.takes(took_s, lambda: setattr(asked.machine, "interrupts", 1))
    order = asked.order()
    asked.machine.act = lambda: None
    return order


def test_an_interrupted_instance_rests_and_is_built_anew(asked: Asked):
    assert interrupt(asked, computed_s=0.011) == DEFAULT_ORDER

    assert asked.tally().last_error == (
        "was interrupted after 11.0 ms at mine.py:3 in act; a step's policies have 10 ms"
    )
    asked.next_step(after_s=REST_S - 0.001)
    assert asked.order() == DEFAULT_ORDER
    assert asked.victims() == DEFAULT_VICTIMS
    assert asked.machine.built == 1
    asked.next_step(after_s=0.001)
    assert asked.order() == MY_ORDER
    assert asked.victims() == MY_VICTIMS
    assert asked.machine.built == 2


def test_who_answers_too_late_rests_and_stays_the_instance_that_it_is(asked: Asked):
    asked.machine.act = asked.machine.takes(0.011)
    assert asked.order() == DEFAULT_ORDER
    asked.machine.act = lambda: None

    asked.next_step()
    assert asked.order() == DEFAULT_ORDER
    asked.next_step(after_s=REST_S)
    assert asked.order() == MY_ORDER
    assert asked.machine.built == 1


def test_building_anew_takes_its_time_from_the_step(asked: Asked):
    interrupt(asked, computed_s=0.011)
    asked.machine.construct = asked.machine.takes(0.0085)
    asked.next_step(after_s=REST_S)

    with capture_logs() as logs:
        assert asked.order() == DEFAULT_ORDER

    assert [(entry["event"], entry["left_ms"]) for entry in logs] == [("policy lacks time", 1.5)]
    assert asked.machine.built == 2
    asked.next_step()
    assert asked.order() == MY_ORDER
    assert asked.machine.built == 2


def test_where_others_spent_the_time_nothing_is_built():
    asked = Asked(two=True)
    asked.machine.act = asked.machine.takes(0.003, lambda: setattr(asked.machine, "interrupts", 1))
    asked.victims()
    asked.next_step(after_s=REST_S)
    built = asked.machine.built
    asked.machine.act = asked.machine.takes(0.0085)

    assert asked.order() == MY_ORDER
    assert asked.victims() == DEFAULT_VICTIMS
    assert asked.machine.built == built


def test_a_third_strike_by_interruption_builds_nothing_until_the_release(asked: Asked):
    for _ in range(3):
        assert interrupt(asked, computed_s=0.011) == DEFAULT_ORDER
        asked.next_step(after_s=REST_S)

    assert asked.runner.quarantined == ("mine",)
    assert asked.order() == DEFAULT_ORDER
    assert asked.machine.built == 3
    asked.runner.release("mine")
    assert asked.machine.built == 4
    assert asked.order() == MY_ORDER


def test_an_excuse_says_that_the_machine_was_busy(asked: Asked):
    with capture_logs() as logs:
        interrupt(asked, computed_s=0.001)

    (entry,) = logs
    assert (entry["event"], entry["why"]) == ("policy excused", "the machine was busy")


def test_who_was_interrupted_in_what_others_left_is_excused_but_built_anew():
    asked = Asked(two=True)
    with capture_logs() as logs:
        for _ in range(5):
            asked.machine.act = asked.machine.takes(0.007)
            asked.order()
            asked.machine.computed_s = 0.003
            asked.machine.act = asked.machine.takes(
                0.0031, lambda: setattr(asked.machine, "interrupts", 1)
            )
            assert asked.victims() == DEFAULT_VICTIMS
            asked.next_step(after_s=REST_S)

    asked.machine.act = lambda: None
    (entry,) = logs
    assert (entry["event"], entry["why"]) == ("policy excused", "others had spent the time")
    assert entry["what"] == (
        "was interrupted after 3.1 ms at mine.py:3 in act; "
        "a step's policies have 10 ms, of which 3.0 were left"
    )
    assert asked.tally("other", "select_victims").excused == 5
    assert asked.runner.faults == 0
    assert asked.victims() == MY_VICTIMS
    assert asked.machine.built == 2 + 5


def test_what_a_policy_has_spent_itself_is_no_excuse(asked: Asked):
    """Two hooks that take 6 ms each: the second is interrupted in the 4 ms that are left."""
    for _ in range(3):
        asked.machine.act = asked.machine.takes(0.006)
        assert asked.order() == MY_ORDER
        asked.machine.computed_s = 0.004
        asked.machine.act = asked.machine.takes(
            0.004, lambda: setattr(asked.machine, "interrupts", 1)
        )
        assert asked.victims() == DEFAULT_VICTIMS
        asked.next_step(after_s=REST_S)

    assert asked.runner.quarantined == ("mine",)
    assert asked.tally(hook="select_victims").excused == 0


def test_what_a_policy_has_spent_itself_of_a_budget_that_comes_back_is_no_excuse():
    """A gate that takes 6 ms, 200 times a second: 6.5 ms are left, then 3, and it is interrupted.

    The calls between two interruptions are good ones.
    """
    asked = Asked(refill=0.5)
    for _ in range(3):
        for _ in range(2):
            asked.machine.act = asked.machine.takes(0.006)
            assert asked.order() == MY_ORDER
            asked.next_step(after_s=0.005)
        assert interrupt(asked, computed_s=0.0031, took_s=0.0031) == DEFAULT_ORDER
        asked.next_step(after_s=REST_S)

    assert asked.runner.quarantined == ("mine",)
    assert asked.tally().excused == 0


def test_what_others_have_spent_of_a_budget_that_comes_back_is_an_excuse_until_it_is_back():
    asked = Asked(two=True, refill=0.5)
    asked.machine.act = asked.machine.takes(0.006)
    assert asked.order() == MY_ORDER
    asked.machine.computed_s = 0.0041
    asked.machine.act = asked.machine.takes(0.0041, lambda: setattr(asked.machine, "interrupts", 1))
    assert asked.victims() == DEFAULT_VICTIMS
    assert asked.runner.faults == 0

    asked.next_step(after_s=1.0)
    asked.machine.computed_s = 0.0101
    asked.machine.act = asked.machine.takes(0.0101, lambda: setattr(asked.machine, "interrupts", 1))
    assert asked.victims() == DEFAULT_VICTIMS
    assert asked.runner.faults == 1


def test_a_quick_hook_makes_no_excuse_for_a_slow_one(asked: Asked):
    asked.machine.computed_s = 0.001
    for faults in (0, 1):
        asked.machine.act = lambda: None
        assert asked.victims() == MY_VICTIMS
        asked.machine.act = asked.machine.takes(0.011)
        asked.order()
        asked.next_step()
        assert asked.runner.faults == faults


def test_a_released_policy_has_no_excuses_behind_it(asked: Asked):
    asked.machine.computed_s = 0.001
    asked.machine.act = asked.machine.takes(0.011)
    assert asked.order() == MY_ORDER
    asked.next_step()
    asked.machine.act = raises(ValueError("no"))
    for _ in range(3):
        asked.victims()
        asked.next_step()
    asked.runner.release("mine")

    asked.machine.act = asked.machine.takes(0.011)
    assert asked.order() == MY_ORDER
    assert asked.runner.faults == 3


def test_what_cannot_be_built_anew_is_at_fault_again_and_again(asked: Asked):
    asked.machine.construct = raises(SystemExit())
    interrupt(asked, computed_s=0.011)

    for faults in (2, 3):
        asked.next_step(after_s=REST_S)
        assert asked.order() == DEFAULT_ORDER
        assert asked.victims() == DEFAULT_VICTIMS
        assert asked.runner.faults == faults
        asked.next_step()
        assert asked.order() == DEFAULT_ORDER  # rests
        assert asked.runner.faults == faults

    assert asked.tally().last_error.startswith("cannot be built anew: ")
    assert asked.runner.quarantined == ("mine",)


def test_nothing_of_a_constructor_that_failed_waits_for_the_collector(asked: Asked):
    """Its error and its frame hold each other, and so whatever it has made."""
    ended: list[bool] = []

    class Ends:
        def __del__(self) -> None:
            ended.append(True)

    def construct() -> None:
        made, kept = Ends(), []  # noqa: F841 - its frame holds it
        try:
            raise ValueError("no")
        except ValueError as error:
            kept.append(error)
            raise

    asked.fail(3)
    asked.machine.construct = construct
    gc.disable()
    try:
        with pytest.raises(PolicyUnusable):
            asked.runner.release("mine")
        assert ended == [True]
    finally:
        gc.enable()


def test_what_is_built_anew_at_last_is_asked_at_once(asked: Asked):
    asked.machine.construct = raises(SystemExit())
    interrupt(asked, computed_s=0.011)
    asked.next_step(after_s=REST_S)
    asked.order()
    asked.machine.construct = lambda: None
    asked.next_step(after_s=REST_S)

    assert asked.order() == MY_ORDER


def test_building_anew_on_a_busy_machine_is_no_fault(asked: Asked):
    interrupt(asked, computed_s=0.011)
    asked.machine.computed_s = 0.001
    asked.machine.construct = asked.machine.takes(
        0.015, lambda: setattr(asked.machine, "interrupts", 1)
    )
    asked.next_step(after_s=REST_S)

    assert asked.order() == DEFAULT_ORDER
    assert asked.tally().excused == 1
    assert asked.runner.faults == 1


def test_a_budget_may_come_back_little_by_little():
    asked = Asked(refill=0.5)
    asked.machine.act = asked.machine.takes(0.006)
    assert asked.order() == MY_ORDER
    asked.next_step(after_s=0.001)
    asked.machine.act = asked.machine.takes(0.003)
    assert asked.order() == MY_ORDER  # in 4.5 ms
    asked.next_step(after_s=0.0005)
    assert asked.order() == DEFAULT_ORDER
    assert asked.tally().passed_over == 1
    asked.next_step(after_s=0.001)
    asked.machine.act = lambda: None
    assert asked.order() == MY_ORDER  # in 2.25 ms
    asked.next_step(after_s=1.0)
    asked.machine.act = asked.machine.takes(0.0099)
    assert asked.order() == MY_ORDER


def test_who_takes_the_guards_signal_away_is_at_fault(asked: Asked):
    asked.machine.disarms = True

    assert asked.order() == DEFAULT_ORDER

    assert asked.tally().last_error == "took away the signal or the timer that ends calls"
    asked.next_step()
    assert asked.order() == MY_ORDER
    assert asked.runner.faults == 1


def test_who_takes_the_signal_away_when_it_is_built_is_not_released(asked: Asked):
    asked.fail(3)
    asked.machine.disarms = True

    with pytest.raises(PolicyUnusable, match="took away the signal"):
        asked.runner.release("mine")


def test_a_policy_that_changes_the_view_of_the_step_gains_nothing(asked: Asked):
    def forge() -> None:
        object.__setattr__(asked.step, "step_id", object())
        object.__setattr__(asked.step, "now_s", "never")
        raise ValueError

    step = asked.step
    for _ in range(3):
        asked.step = replace(step, step_id=step.step_id + 1, now_s=step.now_s + 0.01)
        step = replace(asked.step)
        asked.machine.act = forge
        assert asked.order() == DEFAULT_ORDER

    assert asked.runner.quarantined == ("mine",)


class Broken:
    @hookimpl
    def order_admissions(self, waiting: RequestColumns, step: StepView) -> Any:
        raise SystemExit


@pytest.mark.parametrize("chosen", ["fcfs", "mine"])
def test_the_engine_survives_a_default_that_fails(chosen: str):
    policies = {**BUILTIN, "fcfs": Broken, "mine": Broken}
    decisions = Decisions(Profile({"order_admissions": chosen}, policies))

    for step_id in range(5):
        step = replace(STEP, step_id=step_id)
        assert decisions.order_admissions(WAITING, step).tolist() == [0.0, 0.0]

    assert decisions.faults == (5 if chosen == "fcfs" else 8)


def test_news_are_told_when_they_change(asked: Asked):
    asked.victims()
    assert asked.runner.take_news() == ()
    asked.fail(2)
    assert asked.runner.take_news() == (FaultCount("mine", "order_admissions", 2, False),)
    assert asked.runner.take_news() == ()
    asked.fail(1)
    assert asked.runner.take_news() == (FaultCount("mine", "order_admissions", 3, True),)
    asked.runner.release("mine")
    assert asked.runner.take_news() == (FaultCount("mine", "order_admissions", 3, False),)


def test_who_is_asked_stands_in_memory_until_it_has_returned(asked: Asked):
    seen: list[Culprit | None] = []
    asked.machine.now_s = 7.0
    asked.machine.act = lambda: seen.append(read_blame(asked.memory))
    asked.order()
    asked.victims()

    assert seen == [
        Culprit("mine", "order_admissions", 7.0),
        Culprit("mine", "select_victims", 7.0),
    ]
    assert read_blame(asked.memory) is None


def test_who_is_built_anew_stands_in_memory_until_that_has_ended(asked: Asked):
    seen: list[Culprit | None] = []

    def construct() -> None:
        seen.append(read_blame(asked.memory))
        if len(seen) == 1:
            raise ValueError("no")

    asked.fail(3)
    asked.machine.now_s = 7.0
    asked.machine.construct = construct
    with pytest.raises(PolicyUnusable):
        asked.runner.release("mine")
    assert read_blame(asked.memory) is None
    asked.runner.release("mine")
    interrupt(asked, computed_s=0.011)
    asked.next_step(after_s=REST_S)
    asked.machine.now_s = 8.0
    asked.order()

    assert seen == [Culprit("mine", "__init__", since_s) for since_s in (7.0, 7.0, 8.0)]
    assert read_blame(asked.memory) is None


def test_ctrl_c_without_a_guard_leaves_nobody_to_blame_for_building():
    machine, memory = Machine(), bytearray(SIZE)
    profile = Profile({"order_admissions": "mine"}, {**BUILTIN, "mine": machine.policy()})
    runner = PolicyRunner(profile, guard=NoGuard(), blame=Blame(memory))
    decisions = Decisions(profile, runner)
    machine.act = raises(ValueError("no"))
    for step_id in range(3):
        decisions.order_admissions(WAITING, replace(STEP, step_id=step_id))
    machine.construct = raises(KeyboardInterrupt())

    with pytest.raises(KeyboardInterrupt):
        runner.release("mine")

    assert read_blame(memory) is None


def test_another_process_goes_on_from_what_was_counted(asked: Asked):
    asked.fail(3)
    faults = [*asked.runner.take_news(), FaultCount("fcfs", "order_admissions", 1, True)]
    successor = PolicyRunner(Profile())
    uses = [HookUse("mine", "order_admissions", calls=9, spent_s=0.5, passed_over=4, excused=2)]
    successor.restore(faults, uses)

    assert successor.quarantined == ("mine",)  # and not the default
    assert successor.faults == 4
    assert {*successor.take_news()} == {*faults[:1], faults[1]._replace(quarantined=False)}
    tally = successor.tallies["mine", "order_admissions"]
    assert (tally.calls, tally.faults, tally.passed_over, tally.excused) == (9, 3, 4, 2)
    assert "gone" in successor.unanswered()[0].last_error
