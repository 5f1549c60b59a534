"""Profiles: names are checked, and a policy decides only what it was given."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pluggy
import pytest
import structlog

from cadenza.policies import RequestColumns, StepView, hookimpl
from cadenza.policies.builtin import BUILTIN, DEFAULTS
from cadenza.policies.profile import Profile, ProfileError
from tests.policies.views import STEP, columns


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"order": "fcfs"}, "there is no hook 'order'; hooks are predict_lengths, plan_budget, "),
        ({"on_finished": "past-future"}, "'on_finished' is not chosen: every policy"),
        ({"order_admissions": "lifo"}, "there is no policy 'lifo'; policies are "),
        (
            {"select_victims": "fcfs"},
            "policy 'fcfs' does not decide select_victims; these do: .*lowest-priority, newest",
        ),
    ],
)
def test_a_wrong_name_is_refused_with_the_right_ones(chosen: dict[str, str], message: str):
    with pytest.raises(ProfileError, match=message):
        Profile(chosen)


def test_hooks_that_are_not_chosen_use_the_default():
    assert Profile({"reserve_blocks": "none"}).names == {**DEFAULTS, "reserve_blocks": "none"}


class Both:
    @hookimpl
    def order_admissions(self, waiting: RequestColumns, step: StepView) -> np.ndarray:
        return np.zeros(len(waiting))

    @hookimpl
    def select_victims(self, running: RequestColumns, step: StepView) -> np.ndarray:
        return np.zeros(len(running))


def test_a_policy_with_two_hooks_is_asked_only_for_the_chosen_one():
    profile = Profile({"order_admissions": "both"}, {**BUILTIN, "both": Both})

    def plugins(hook: str) -> list[str]:
        caller = profile.caller(hook, profile.names[hook])
        return [impl.plugin_name for impl in caller.get_hookimpls()]

    assert plugins("order_admissions") == ["both"]
    assert plugins("select_victims") == ["newest"]


@pytest.mark.parametrize("name", ["order", "__call__", "__format__"])
def test_a_hook_may_have_any_name(name: str):
    """Those of `object` too, where the method is not `object`'s own."""

    def order(self: object, waiting: RequestColumns) -> np.ndarray:
        return np.zeros(len(waiting))

    policy = type("Mine", (), {name: hookimpl(specname="order_admissions")(order)})
    profile = Profile({"order_admissions": "mine"}, {**BUILTIN, "mine": policy})

    [impl] = profile.caller("order_admissions", "mine").get_hookimpls()
    assert impl.plugin_name == "mine"


class Misspelt:
    @hookimpl
    def order_admissions(self, waiting: RequestColumns, step: StepView) -> None:
        return None

    @hookimpl
    def selectt_victims(self, running: RequestColumns) -> None:
        return None


class Unmarked:
    def order_admissions(self, waiting: RequestColumns, step: StepView) -> np.ndarray:
        return np.zeros(len(waiting))


class UnmarkedObserver:
    @hookimpl
    def order_admissions(self, waiting: RequestColumns, step: StepView) -> None:
        return None

    def on_finished(self, finished: RequestColumns, step: StepView) -> None:
        return None


class WrongArgument:
    @hookimpl
    def order_admissions(self, waiting_rows: RequestColumns, step: StepView) -> None:
        return None


class CannotBeBuilt:
    def __init__(self) -> None:
        raise RuntimeError("no model file")

    @hookimpl
    def order_admissions(self, waiting: RequestColumns, step: StepView) -> None:
        return None


class LeavesWhenBuilt:
    def __init__(self) -> None:
        raise SystemExit(3)

    @hookimpl
    def order_admissions(self, waiting: RequestColumns, step: StepView) -> None:
        return None


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (Misspelt, "selectt_victims"),
        (Unmarked, "order_admissions that is not marked with @hookimpl"),
        (UnmarkedObserver, "on_finished that is not marked with @hookimpl"),
        (WrongArgument, "waiting_rows"),
        (CannotBeBuilt, "no model file"),
        (LeavesWhenBuilt, "cannot be used: SystemExit: 3 at test_profile.py:"),
    ],
)
def test_a_policy_that_cannot_work_is_refused_by_name(policy: type, message: str):
    with pytest.raises(ProfileError, match="'mine'") as refused:
        Profile({"order_admissions": "mine"}, {**BUILTIN, "mine": policy})

    assert message in str(refused.value)


def test_only_policies_of_the_profile_observe():
    assert Profile().observers("on_finished") == ()
    assert Profile({"reserve_blocks": "past-future"}).observers("on_finished") == ("past-future",)


def test_a_default_behind_a_chosen_policy_observes_too():
    class Default(BUILTIN["new-token-ratio"]):  # type: ignore[misc]
        @hookimpl
        def on_finished(self, finished: RequestColumns, step: StepView) -> None:
            return None

    profile = Profile({"reserve_blocks": "none"}, {**BUILTIN, "new-token-ratio": Default})

    assert profile.observers("on_finished") == ("new-token-ratio",)


def test_the_default_guard_stands_beside_a_chosen_one():
    class Guard:
        @hookimpl
        def guard_starvation(self, waiting: RequestColumns, step: StepView) -> None:
            return None

    profile = Profile({"guard_starvation": "mine"}, {**BUILTIN, "mine": Guard})

    assert profile.guards == ("mine", "bounded-overtake")
    assert Profile().guards == ("bounded-overtake",)


class Tunable:
    @dataclass(frozen=True)
    class Options:
        depth: int
        share: float = 0.5
        fast: bool = False
        mode: Literal["a", "b"] = "a"
        limit: int | None = None
        weights: tuple[float, ...] = ()

        def __post_init__(self) -> None:
            if self.depth < 0:
                raise ValueError("depth must not be negative")

    def __init__(self, options: Options) -> None:
        self.options = options
        built.append(options)

    @hookimpl
    def order_admissions(self, waiting: RequestColumns, step: StepView) -> np.ndarray:
        return np.zeros(len(waiting))


built: list[Tunable.Options] = []


def tuned(**options: object) -> Tunable.Options:
    policies = {**BUILTIN, "mine": Tunable}
    Profile({"order_admissions": "mine"}, policies, {"mine": options})
    return built[-1]


def test_options_may_be_text_or_values():
    text = {"depth": "3", "share": "0.25", "fast": "true", "mode": "b", "limit": "null"}

    assert tuned(**text) == Tunable.Options(depth=3, share=0.25, fast=True, mode="b")
    assert tuned(depth=3, share=1, weights=[1, 2.5]) == Tunable.Options(
        depth=3, share=1.0, weights=(1.0, 2.5)
    )


@pytest.mark.parametrize(
    ("options", "faults"),
    [
        ({}, ["policy 'mine' needs the option depth, of type int"]),
        (
            {"depth": 1, "shair": 2},
            [
                "policy 'mine': there is no option 'shair' (did you mean 'share'?); "
                "options are depth, share, fast, mode, limit, weights"
            ],
        ),
        (
            {"depth": "many", "share": "1.5.0", "fast": "perhaps", "mode": "c"},
            [
                "policy 'mine': depth must be int, and is 'many'",
                "policy 'mine': share must be float, and is '1.5.0'",
                "policy 'mine': fast must be bool, and is 'perhaps'",
                "policy 'mine': mode must be 'a' or 'b', and is 'c'",
            ],
        ),
        ({"depth": -1}, ["policy 'mine' refuses its options: depth must not be negative"]),
    ],
)
def test_wrong_options_are_told_with_what_would_be_right(
    options: dict[str, object], faults: list[str]
):
    with pytest.raises(ProfileError) as refused:
        tuned(**options)

    assert list(refused.value.faults) == faults


def test_options_of_a_policy_that_is_not_used_are_a_fault():
    with pytest.raises(ProfileError, match="options are given for 'priority', which this profile"):
        Profile({}, BUILTIN, {"priority": {}})


def test_a_policy_without_options_is_given_none():
    with pytest.raises(ProfileError, match="'fcfs' takes no options, and was given depth"):
        Profile({}, BUILTIN, {"fcfs": {"depth": 1}})


def test_all_faults_are_told_at_once():
    chosen = {"order": "fcfs", "select_victims": "lifo", "order_admissions": "mine"}

    with pytest.raises(ProfileError) as refused:
        Profile(chosen, {**BUILTIN, "mine": Tunable}, {"unused": {}})

    assert len(refused.value.faults) == 4
    assert str(refused.value).startswith("4 faults:\n  - there is no hook 'order'")


@pytest.mark.parametrize("several", [[], ["fcfs", "priority"]])
def test_a_decision_has_one_policy(several: list[str]):
    with pytest.raises(ProfileError, match="decided by one policy, not by"):
        Profile({"order_admissions": several})


class MarksNobody:
    @hookimpl
    def guard_starvation(self, waiting: RequestColumns) -> None:
        return None


class Listener:
    told = 0

    @hookimpl
    def on_finished(self, finished: RequestColumns) -> None:
        self.told += 1

    @hookimpl
    def order_admissions(self, waiting: RequestColumns) -> None:
        raise AssertionError("an observer decides nothing")


def test_guards_and_observers_may_be_several():
    policies = {**BUILTIN, "a": MarksNobody, "b": MarksNobody, "c": Listener, "d": Listener}

    profile = Profile({"guard_starvation": ["a", "b"], "observer": ["c", "d"]}, policies)

    assert profile.guards == ("a", "b", "bounded-overtake")
    assert profile.names["guard_starvation"] == "a"
    assert profile.observers("on_finished") == ("c", "d")
    assert profile.names["order_admissions"] == "fcfs"
    assert profile.deciding("guard_starvation") == profile.guards
    assert profile.deciding("on_finished") == ("c", "d")
    assert profile.deciding("order_admissions") == ("fcfs",)
    assert {"a", "b", "c", "d", "bounded-overtake", "newest"} <= {*profile.policies}


def test_who_observes_nothing_is_no_observer():
    with pytest.raises(ProfileError, match=r"'fcfs' does not observe anything; these do: .*past"):
        Profile({"observer": "fcfs"})


def test_a_rebuilt_policy_is_a_fresh_instance_of_the_same_options():
    policies = {**BUILTIN, "mine": Tunable, "other": Listener}
    chosen = {"order_admissions": "mine", "observer": "other"}
    profile = Profile(chosen, policies, {"mine": {"depth": 7}})
    before, other = instance(profile, "mine"), instance(profile, "other", "on_finished")

    profile.rebuild("mine")

    after = instance(profile, "mine")
    assert after is not before
    assert after.options == before.options == Tunable.Options(depth=7)
    assert instance(profile, "other", "on_finished") is other


def instance(profile: Profile, policy: str, hook: str = "order_admissions") -> Any:
    (impl,) = profile.caller(hook, policy).get_hookimpls()
    return impl.plugin


def test_a_policy_that_cannot_be_rebuilt_keeps_its_instance():
    class Once:
        left = 1

        def __init__(self) -> None:
            if not Once.left:
                raise RuntimeError("no second time")
            Once.left -= 1

        @hookimpl
        def order_admissions(self, waiting: RequestColumns) -> None:
            return None

    profile = Profile({"order_admissions": "mine"}, {**BUILTIN, "mine": Once})
    before = instance(profile, "mine")

    with pytest.raises(ProfileError, match="no second time"):
        profile.rebuild("mine")
    with pytest.raises(KeyError):
        profile.rebuild("priority")
    assert instance(profile, "mine") is before


def test_calls_are_logged_for_whoever_asks():
    profile = Profile({"order_admissions": "both"}, {**BUILTIN, "both": Both}, trace=True)
    waiting = columns(priority=[2, 1])

    with structlog.testing.capture_logs() as logs:
        profile.caller("order_admissions", "both")(waiting=waiting, step=STEP)
        profile.rebuild("both")
        profile.caller("order_admissions", "both")(waiting=waiting, step=STEP)

    assert [(each["policy"], each["hook"]) for each in logs] == [("both", "order_admissions")] * 2
    assert all(each["us"] > 0 for each in logs)


def test_without_tracing_pluggy_calls_hooks_directly(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pluggy.PluginManager, "add_hookcall_monitoring", None)

    Profile()

    with pytest.raises(TypeError):
        Profile(trace=True)
