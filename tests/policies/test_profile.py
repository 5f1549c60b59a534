"""Profiles: names are checked, and a policy decides only what it was given."""

import numpy as np
import pytest
from pluggy import PluginValidationError

from cadenza.policies import RequestColumns, StepView, hookimpl
from cadenza.policies.builtin import BUILTIN, DEFAULTS
from cadenza.policies.profile import Profile, ProfileError


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"order": "fcfs"}, "there is no hook 'order'; hooks are order_admissions, "),
        ({"order_admissions": "lifo"}, "there is no policy 'lifo'; policies are "),
        (
            {"select_victims": "fcfs"},
            "policy 'fcfs' does not decide select_victims; these do: newest",
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

    def plugins(caller: str) -> list[str]:
        return [impl.plugin_name for impl in profile.chosen(caller).get_hookimpls()]

    assert plugins("order_admissions") == ["both"]
    assert plugins("select_victims") == ["newest"]


class Misspelt:
    @hookimpl
    def order_admissions(self, waiting: RequestColumns, step: StepView) -> None:
        return None

    @hookimpl
    def selectt_victims(self, running: RequestColumns) -> None:
        return None


def test_a_misspelt_hook_is_refused():
    with pytest.raises(PluginValidationError, match="selectt_victims"):
        Profile({"order_admissions": "misspelt"}, {**BUILTIN, "misspelt": Misspelt})
