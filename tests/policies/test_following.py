"""A profile that follows another: what is kept, what begins anew, and what is let go."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from cadenza.policies import RequestColumns, hookimpl
from cadenza.policies.builtin import BUILTIN, DEFAULTS
from cadenza.policies.decisions import Decisions
from cadenza.policies.profile import Profile, ProfileError
from cadenza.policies.runner import STRIKES, FaultCount, PolicyRunner
from tests.policies.views import STEP, columns

WAITING = columns(arrival=[10, 11], overtakes=[0, 0])
RUNNING = columns(admission=[0, 1])


class Counting:
    """Answers with how often it was asked."""

    @dataclass(frozen=True)
    class Options:
        step: int = 1

    def __init__(self, options: Options) -> None:
        self._options = options
        self._asked = 0

    @hookimpl
    def order_admissions(self, waiting: RequestColumns) -> Any:
        self._asked += self._options.step
        return np.full(len(waiting), self._asked)

    @hookimpl
    def select_victims(self, running: RequestColumns) -> Any:
        return np.full(len(running), self._asked)


class Broken:
    @hookimpl
    def order_admissions(self) -> Any:
        raise ValueError("no")


class BrokenToo(Broken):
    pass


POLICIES = {**BUILTIN, "counting": Counting, "broken": Broken, "broken-too": BrokenToo}


def profile(before: Profile | None = None, **chosen: str) -> Profile:
    return Profile(chosen, POLICIES, before=before)


def order(decisions: Decisions, step_id: int = 0) -> list[float]:
    step = replace(STEP, step_id=step_id, now_s=step_id * 0.01)
    return decisions.order_admissions(WAITING, step).tolist()


class Asked:
    """One runner through several profiles."""

    def __init__(self, first: Profile) -> None:
        self.profile = first
        self.runner = PolicyRunner(first)
        self._step_id = 0

    def use(self, options: dict[str, dict[str, Any]] | None = None, **chosen: str) -> None:
        self.profile = Profile(chosen, POLICIES, options, before=self.profile)
        self.runner.use(self.profile)

    def order(self) -> list[float]:
        self._step_id += 1
        return order(Decisions(self.profile, self.runner), self._step_id)

    def fail(self, times: int) -> None:
        for _ in range(times):
            assert self.order() == [10.0, 11.0], "the default's answer"


def test_a_policy_in_both_keeps_its_state():
    asked = Asked(profile(order_admissions="counting"))
    assert [asked.order(), asked.order()] == [[1.0, 1.0], [2.0, 2.0]]

    asked.use(order_admissions="counting", select_victims="lowest-priority")

    assert asked.order() == [3.0, 3.0]


def test_its_state_goes_with_it_to_another_hook():
    asked = Asked(profile(order_admissions="counting"))
    asked.order()
    asked.use(select_victims="counting")

    victims = Decisions(asked.profile, asked.runner).select_victims(RUNNING, STEP)

    assert victims.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("before", "after", "kept"),
    [
        ({}, {}, True),
        ({}, {"step": "1"}, True),
        ({"step": "2"}, {"step": 2}, True),
        ({}, {"step": 2}, False),
    ],
)
def test_options_are_compared_as_the_policy_gets_them(before: Any, after: Any, kept: bool):
    chosen = {"order_admissions": "counting"}
    first = Profile(chosen, POLICIES, {"counting": before})
    second = Profile(chosen, POLICIES, {"counting": after}, before=first)

    assert ("counting" in second.kept) is kept


class Incomparable:
    @dataclass(frozen=True)
    class Options:
        def __eq__(self, other: object) -> bool:
            raise RuntimeError("no")

    def __init__(self, options: Options) -> None:
        pass

    @hookimpl
    def order_admissions(self) -> None: ...


def test_options_that_cannot_be_compared_are_others():
    policies = {**BUILTIN, "odd": Incomparable}
    chosen = {"order_admissions": "odd"}

    assert "odd" not in Profile(chosen, policies, before=Profile(chosen, policies)).kept


def test_the_defaults_are_kept_wherever_they_stand():
    second = profile(profile(order_admissions="counting"), order_admissions="broken")
    assert second.kept == {*DEFAULTS.values()}


def test_one_that_was_rebuilt_meanwhile_is_taken_over_as_it_is_now():
    first = profile(order_admissions="counting")
    runner = PolicyRunner(first)
    assert order(Decisions(first, runner)) == [1.0, 1.0]
    second = profile(first, order_admissions="counting", select_victims="lowest-priority")

    first.rebuild("counting")
    second.follow(first)
    runner.use(second)

    assert order(Decisions(second, runner), 1) == [1.0, 1.0]


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, BaseException, ValueError])
def test_one_that_was_rebuilt_meanwhile_and_refuses_to_be_looked_at_is_not_followed(
    error: type[BaseException],
):
    class Shy(Broken):
        is_shy = False

        def __dir__(self) -> Any:
            if self.is_shy:
                raise error("no")
            return super().__dir__()

    policies = {**POLICIES, "shy": Shy}
    chosen = {"order_admissions": "shy"}
    first = Profile(chosen, policies)
    second = Profile(chosen, policies, before=first)
    first.rebuild("shy")
    Shy.is_shy = True

    with pytest.raises(
        ProfileError, match=f"policy 'shy' cannot be used: {error.__name__}: no at "
    ):
        second.follow(first)


def test_what_is_replaced_by_one_that_was_rebuilt_ends_with_the_profile_before():
    first = profile(order_admissions="counting")
    former = weakref.ref(first._instances["counting"])
    second = profile(first, order_admissions="counting")
    first.rebuild("counting")
    gc.disable()
    try:
        second.follow(first)
        assert former() is not None, "whoever follows runs no finalizers"
        first.let_go()
        assert former() is None
    finally:
        gc.enable()


def test_a_profile_that_cannot_be_built_leaves_the_one_before_as_it_is():
    asked = Asked(profile(order_admissions="counting"))
    asked.order()

    with pytest.raises(ProfileError, match="there is no policy 'nobody-knows'"):
        asked.use(order_admissions="counting", select_victims="nobody-knows")

    assert asked.order() == [2.0, 2.0]


def test_a_kept_policy_stays_in_quarantine():
    asked = Asked(profile(order_admissions="broken"))
    asked.fail(STRIKES)
    assert asked.runner.quarantined == ("broken",)

    asked.use(order_admissions="broken", select_victims="lowest-priority")

    assert asked.runner.quarantined == ("broken",)
    asked.fail(1)
    assert asked.runner.tallies["broken", "order_admissions"].faults == STRIKES


def test_strikes_are_kept_too():
    asked = Asked(profile(order_admissions="broken"))
    asked.fail(STRIKES - 1)
    asked.use(order_admissions="broken", select_victims="lowest-priority")
    asked.fail(1)

    assert asked.runner.quarantined == ("broken",)


@pytest.mark.parametrize("again", [True, False])
def test_one_that_leaves_begins_anew_and_what_was_counted_stays(again: bool):
    asked = Asked(profile(order_admissions="broken"))
    asked.fail(STRIKES)
    asked.runner.take_news()

    asked.use(order_admissions="broken-too")
    assert asked.runner.quarantined == ()
    assert asked.runner.take_news() == (
        FaultCount("broken", "order_admissions", STRIKES, quarantined=False),
    )
    if again:
        asked.use(order_admissions="broken")
    asked.fail(1)

    name = "broken" if again else "broken-too"
    assert asked.runner.tallies[name, "order_admissions"].faults == (STRIKES + 1 if again else 1)
    assert asked.runner.faults == STRIKES + 1
    assert asked.runner.quarantined == ()


class Finalized:
    @hookimpl
    def order_admissions(self) -> None: ...


@pytest.fixture
def without_gc() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_those_that_leave_are_let_go_at_once(without_gc: None):
    born: list[weakref.ref[Finalized]] = []

    class Leaving(Finalized):
        def __init__(self) -> None:
            born.append(weakref.ref(self))

    first = Profile({"order_admissions": "leaving"}, {**BUILTIN, "leaving": Leaving})
    runner = PolicyRunner(first)
    order(Decisions(first, runner))
    second = profile(first)
    runner.use(second)
    assert born[0]() is not None

    first.let_go()

    assert born[0]() is None
    assert order(Decisions(second, runner), 1) == [10.0, 11.0]
