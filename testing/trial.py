"""A policy on trial: built as a profile builds it, asked as the scheduler asks it."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from cadenza.policies.builtin import BUILTIN, DEFAULTS
from cadenza.policies.cached_blocks import CachedBlocks
from cadenza.policies.contract import (
    ARGUMENTS,
    ENGINE_HOOKS,
    FRONT_HOOKS,
    OBSERVERS,
    faults_of,
    hooks_of,
    name_faults,
)
from cadenza.policies.decisions import Decisions
from cadenza.policies.front_decisions import FrontDecisions
from cadenza.policies.hook_guard import HookGuard, NoGuard, SignalGuard
from cadenza.policies.profile import GATE, OBSERVER, Profile, ProfileError
from cadenza.policies.runner import PolicyRunner
from cadenza.policies.views import Columns, RequestColumns

PATIENCE_S = 1.0  # of processor time, or asleep

_GRACE_S = 4.0  # a busy machine is not the policy's fault
_MOST_NAMED = 5
_HANGS = "it did not come to an end"


class Failure(AssertionError):
    """A policy breaks the contract: which hook, what was expected, what came, of which requests."""


class WatchedProfile(Profile):
    """Keeps what each hook of one policy answered last, unchecked, and what it raised."""

    def __init__(self, watched: str, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._watched = watched
        self.answered: dict[str, Any] = {}
        self.raised: dict[str, BaseException] = {}

    def caller(self, hook: str, policy: str) -> Any:
        call = super().caller(hook, policy)
        if policy != self._watched:
            return call

        def watch(**arguments: Any) -> Any:
            try:
                answer = self.answered[hook] = call(**arguments)
            except BaseException as error:
                self.raised[hook] = error
                raise
            return answer

        return watch

    def instance_of(self, hook: str) -> object:
        """The watched policy's instance, by a hook that it has."""
        return super().caller(hook, self._watched).get_hookimpls()[0].plugin


class Subject:
    """A policy class with its options."""

    def __init__(
        self, policy: type, options: Mapping[str, Any], patience_s: float = PATIENCE_S
    ) -> None:
        """Raises Failure for a class that no profile would take."""
        faults = [*name_faults(policy), *faults_of(policy)]
        name = getattr(policy, "name", policy.__qualname__)
        if BUILTIN.get(name, policy) is not policy:
            faults.append("has the name of a built-in policy; rename it")
        if faults:
            raise Failure(f"policy {name!r} " + f"\npolicy {name!r} ".join(faults))
        self.policy, self.options, self.patience_s = policy, options, patience_s
        self.name = name
        self.hooks = hooks_of(policy)
        self.profile()

    @property
    def processes(self) -> tuple[tuple[str, ...], ...]:
        """Its hooks by process, each of which has an instance of its own."""
        hooks = (
            tuple(hook for hook in self.hooks if hook in each)
            for each in (ENGINE_HOOKS, FRONT_HOOKS)
        )
        return tuple(each for each in hooks if each)

    @property
    def decisions(self) -> tuple[str, ...]:
        """The hooks whose answers count."""
        return tuple(hook for hook in self.hooks if hook in DEFAULTS)

    @property
    def observers(self) -> tuple[str, ...]:
        """The hooks by which it is told something."""
        return tuple(hook for hook in self.hooks if hook in OBSERVERS)

    def profile(self, **others: str) -> WatchedProfile:
        """A fresh instance, chosen for all that it does; `others` decide what it does not.

        Raises:
            Failure: it cannot be built from its options.
        """
        chosen = {**others, **dict.fromkeys(self.decisions or (OBSERVER,), self.name)}
        given = {self.name: self.options} if self.options else {}
        try:
            return WatchedProfile(self.name, chosen, {**BUILTIN, self.name: self.policy}, given)
        except ProfileError as error:
            raise Failure(str(error)) from error


class Trial:
    """One instance of a subject, and whoever asks it."""

    def __init__(self, subject: Subject, guard: HookGuard, **others: str) -> None:
        self.subject = subject
        self.profile = subject.profile(**others)
        # Not the time that goes by: a busy machine is not the policy's fault
        self.runner = PolicyRunner(
            self.profile, timer=time.thread_time, guard=guard, budget_s=subject.patience_s
        )
        self.decisions = Decisions(self.profile, self.runner)
        self._front = FrontDecisions(self.profile, self.runner)

    @property
    def instance(self) -> object:
        """The one that is asked now."""
        return self.profile.instance_of(self.subject.hooks[0])

    def ask(self, hook: str, arguments: dict[str, Any]) -> Any:
        """What is decided, after all checks that the scheduler would make.

        Raises:
            Failure: the hook raised, did not come to an end, or gave no usable answer.
        """
        if hook == GATE:
            answer = self._front.ask_gate(self.subject.name, **arguments)
        else:
            asked = self._front if hook in FRONT_HOOKS else self.decisions
            answer = getattr(asked, hook)(**arguments)
        said = self.fault(hook)
        if said is not None:
            raise Failure(
                f"{_told(hook, arguments)}: {said}{self._which(hook, arguments)}"
            ) from self.profile.raised.get(hook)
        return answer

    def fault(self, hook: str) -> str | None:
        """What went wrong with a hook so far."""
        tally = self.runner.tallies.get((self.subject.name, hook))
        if tally is None:
            return None
        if tally.excused or "was interrupted" in tally.last_error:
            return f"{_HANGS} {self._limit()}"
        return tally.last_error if tally.faults else None

    def check(self, while_it: str) -> None:
        """Raise Failure if any of its hooks failed."""
        for hook in self.subject.hooks:
            said = self.fault(hook)
            if said is not None:
                raise Failure(f"{hook}, {while_it}: {said}") from self.profile.raised.get(hook)

    def _limit(self) -> str:
        patience_s = self.subject.patience_s
        return f"within {patience_s:g} s of processor time or sleep"

    def _which(self, hook: str, arguments: dict[str, Any]) -> str:
        """The requests whose scores cannot be used, if that is what is wrong."""
        scores, view = self.profile.answered.get(hook), answered(arguments)
        if not (isinstance(scores, np.ndarray) and scores.shape == (len(view),)):
            return ""
        is_float = scores.dtype.kind == "f"
        return named(view, np.isnan(scores) | (scores == -np.inf)) if is_float else ""


def named(view: Columns, chosen: npt.NDArray[np.bool_]) -> str:
    """'; request 3 (index 0 of 2)', for the chosen ones; empty if there are none."""
    indices = np.flatnonzero(chosen).tolist()
    told = [_name(view, index) for index in indices[:_MOST_NAMED]]
    if len(indices) > _MOST_NAMED:
        told.append(f"{len(indices) - _MOST_NAMED} more")
    return "".join(("; ", ", ".join(told))) if told else ""


def _name(view: Columns, index: int) -> str:
    where = f"index {index} of {len(view)}"
    if isinstance(view, RequestColumns):
        return f"request {int(view.request[index])} ({where})"
    if isinstance(view, CachedBlocks):
        return f"block {int(view.block[index])} ({where})"
    return where  # arrivals have no numbers yet


def answered(arguments: dict[str, Any]) -> Columns:
    """Those that the answer has elements for: the last view of requests."""
    views = [each for each in arguments.values() if isinstance(each, Columns)]
    return views[-1]


def _told(hook: str, arguments: dict[str, Any]) -> str:
    lengths = [
        f"{len(arguments[name])} {name}"
        for name in ARGUMENTS[hook]
        if isinstance(arguments[name], Columns)
    ]
    return f"{hook}({', '.join(lengths)})"


@contextmanager
def hook_guard() -> Iterator[HookGuard]:
    """A guard that ends hooks which hang, in the main thread; elsewhere nothing can.

    An alarm that is set already, such as that of pytest-timeout, goes on afterwards.
    """
    if threading.current_thread() is not threading.main_thread():
        yield NoGuard()
        return
    left_s = signal.getitimer(signal.ITIMER_REAL)
    try:
        with SignalGuard(grace_s=_GRACE_S) as guard:
            yield guard
    finally:
        signal.setitimer(signal.ITIMER_REAL, *left_s)
