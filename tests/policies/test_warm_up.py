"""New policies are tried before they decide, and what they are tried on is plausible."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest

from cadenza.policies import RequestColumns, hookimpl
from cadenza.policies.builtin import BUILTIN, DEFAULTS
from cadenza.policies.contract import ARGUMENTS, ENGINE_HOOKS, FRONT_HOOKS, hooks_of
from cadenza.policies.discovery import Catalog, Found
from cadenza.policies.library import Library
from cadenza.policies.profile import Profile, ProfileError
from cadenza.policies.views import PreemptionCosts, StepView
from cadenza.policies.warm_up import made_up_views, warm_up


def library(**policies: type) -> Library:
    found = {name: Found(cls=cls, source="test") for name, cls in (BUILTIN | policies).items()}
    return Library(catalog=Catalog(policies=found))


def test_every_hook_has_views_for_all_its_arguments():
    assert {*made_up_views()} >= {name for names in ARGUMENTS.values() for name in names}


@pytest.mark.parametrize(
    "name", [name for name, view in made_up_views().items() if isinstance(view, RequestColumns)]
)
def test_every_column_can_be_read(name: str):
    view = made_up_views()[name]
    columns = [name for name, each in vars(RequestColumns).items() if isinstance(each, property)]
    assert columns
    for column in columns:
        assert len(getattr(view, column)) == len(view) > 0
    assert (view.num_tokens == view.prompt_tokens + view.generated_tokens).all()


def test_the_rest_is_what_hooks_get():
    views = made_up_views()
    assert isinstance(views["step"], StepView)
    assert isinstance(views["costs"], PreemptionCosts)
    assert len(views["costs"].swap_s) == len(views["victims"])


@pytest.mark.parametrize("policy", BUILTIN)
def test_built_in_policies_pass(policy: str):
    hooks = [hook for hook in hooks_of(BUILTIN[policy]) if hook in DEFAULTS]
    warm_up(Profile(dict.fromkeys(hooks, policy)))


class Thorough:
    """Has every hook, and notes which are called; `answer` is what it returns."""

    called: ClassVar[list[str]] = []
    built = 0

    def __init__(self) -> None:
        type(self).built += 1


def _noting(hook: str) -> Any:
    def note(self: Thorough) -> None:
        self.called.append(hook)

    return hookimpl(specname=hook)(note)


for _hook in ARGUMENTS:
    setattr(Thorough, f"note_{_hook}", _noting(_hook))


def test_every_hook_is_called_on_a_throw_away():
    Thorough.called, Thorough.built = [], 0
    lib = library(thorough=Thorough)
    chosen = dict.fromkeys(DEFAULTS, ("thorough",))
    profile = lib.profile(chosen, {})
    assert Thorough.built == 1

    lib.try_out(profile, chosen, {}, ARGUMENTS)

    assert Thorough.built == 2
    assert sorted(Thorough.called) == sorted(ARGUMENTS)


@pytest.mark.parametrize("hooks", [ENGINE_HOOKS, FRONT_HOOKS])
def test_each_process_tries_its_own_hooks(hooks: tuple[str, ...]):
    Thorough.called, Thorough.built = [], 0
    lib = library(thorough=Thorough)
    chosen = dict.fromkeys(DEFAULTS, ("thorough",))

    lib.try_out(lib.profile(chosen, {}), chosen, {}, hooks)

    assert sorted(Thorough.called) == sorted(hooks)


def test_one_without_hooks_of_a_process_is_not_built_for_it():
    lib = library(raises=Raises)
    chosen = {"order_admissions": ("raises",)}
    lib.try_out(lib.profile(chosen, {}), chosen, {}, FRONT_HOOKS)


def test_kept_policies_are_left_alone():
    Thorough.called, Thorough.built = [], 0
    lib = library(thorough=Thorough)
    first = lib.profile({"order_admissions": ("thorough",)}, {})
    chosen = {"order_admissions": ("thorough",), "select_victims": ("lowest-priority",)}
    second = lib.profile(chosen, {}, before=first)

    lib.try_out(second, chosen, {}, ARGUMENTS)

    assert Thorough.built == 1
    assert Thorough.called == []


class Raises:
    @hookimpl
    def order_admissions(self) -> Any:
        import no_such_module_at_all  # noqa: F401


class Answers:
    @hookimpl
    def guard_starvation(self, waiting: RequestColumns) -> Any:
        return np.zeros(len(waiting) + 1, dtype=bool)


class Observes:
    @hookimpl
    def on_finished(self, finished: RequestColumns) -> None:
        raise SystemExit


def test_failures_are_told_with_the_hook_all_at_once():
    lib = library(raises=Raises, answers=Answers, observes=Observes)
    chosen = {
        "order_admissions": ("raises",),
        "guard_starvation": ("answers",),
        "observer": ("observes",),
    }

    with pytest.raises(ProfileError) as caught:
        lib.try_out(lib.profile(chosen, {}), chosen, {}, ARGUMENTS)

    text = "\n".join(sorted(caught.value.faults))
    assert len(caught.value.faults) == 3
    assert "policy 'answers' fails in guard_starvation when it is tried: AnswerError(" in text
    assert "policy 'observes' fails in on_finished when it is tried: SystemExit()" in text
    assert "policy 'raises' fails in order_admissions when it is tried: ModuleNotFound" in text
