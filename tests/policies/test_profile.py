"""Profiles: names are checked, and a policy decides only what it was given."""

import numpy as np
import pytest

from cadenza.policies import RequestColumns, StepView, hookimpl
from cadenza.policies.builtin import BUILTIN, DEFAULTS
from cadenza.policies.profile import Profile, ProfileError


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"order": "fcfs"}, "there is no hook 'order'; hooks are order_admissions, "),
        ({"on_finished": "past-future"}, "'on_finished' is not chosen: every policy"),
        ({"order_admissions": "lifo"}, "there is no policy 'lifo'; policies are "),
        (
            {"select_victims": "fcfs"},
            "policy 'fcfs' does not decide select_victims; these do: lowest-priority, newest",
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


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (Misspelt, "selectt_victims"),
        (Unmarked, "order_admissions that is not marked with @hookimpl"),
        (UnmarkedObserver, "on_finished that is not marked with @hookimpl"),
        (WrongArgument, "waiting_rows"),
        (CannotBeBuilt, "no model file"),
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
