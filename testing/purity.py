"""Same questions, same answers; and nothing is done to what a hook is given."""

from __future__ import annotations

import dataclasses
import random
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, datetime
from types import FrameType
from typing import Any

import numpy as np

from cadenza.policies.hook_guard import HookGuard
from cadenza.policies.views import Columns
from cadenza.testing.scenes import Scene, life, random_scene
from cadenza.testing.trial import Failure, Subject, Trial, answered, named

_CLOCKS = {"time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns"}
_CLOCKS |= {"process_time", "process_time_ns", "thread_time", "thread_time_ns", "clock_gettime"}
_SIGNS_OF_WRITING = ("read-only", "has no setter", "FrozenInstanceError")


def check_determinism(subject: Subject, guard: HookGuard) -> None:
    """Raises Failure if two fresh instances answer the same questions differently."""
    first, second = (_answers(subject, guard, seed) for seed in (1, 2))
    for (hook, scene, one), (_, _, other) in zip(first, second, strict=True):
        if not np.array_equal(one, other):
            raise Failure(
                f"{hook}: two fresh instances that were asked the same in the same order answered "
                f"differently in step {scene.step.step_id}: {_difference(hook, scene, one, other)}"
            )


def check_clocks(subject: Subject, guard: HookGuard) -> None:
    """Raises Failure if a hook asks for the time, or sleeps."""
    for trial, _, hook, arguments in _calls(subject, guard):
        with _watching(subject.policy.__module__) as called:
            try:
                trial.ask(hook, arguments)
            except Failure:
                if not called:
                    raise
        if called:
            raise Failure(
                f"{hook} calls {called[0]}; what it decides must follow from what it is given "
                "(step.now_s is the time), and it must not wait"
            )


def check_input(subject: Subject, guard: HookGuard) -> None:
    """Raises Failure if a hook writes to what it is given, or keeps a view."""
    for trial, _, hook, arguments in _calls(subject, guard):
        _check_input(trial, hook, arguments)


def _check_input(trial: Trial, hook: str, arguments: dict[str, Any]) -> None:
    before = {name: _contents(each) for name, each in arguments.items()}
    views = [name for name, each in arguments.items() if isinstance(each, Columns)]
    known = {name: sys.getrefcount(arguments[name]) for name in views}
    try:
        trial.ask(hook, arguments)
    except Failure as failure:
        if not any(sign in str(failure) for sign in _SIGNS_OF_WRITING):
            raise
        raise Failure(
            f"{failure}; views cannot be written to: change a copy (waiting.priority.copy())"
        ) from failure
    for name, each in arguments.items():
        after = _contents(each)
        changed = [content for content, was in before[name].items() if after[content] != was]
        if changed:
            raise Failure(f"{hook} changes {', '.join(changed)} of `{name}`")
    kept = [name for name in views if sys.getrefcount(arguments[name]) > known[name]]
    if kept:
        raise Failure(f"{hook} keeps `{kept[0]}` after it has returned; keep copies of columns")


def fingerprint(subject: Subject, guard: HookGuard) -> str:
    """The same for all processes in which a policy answers the same."""
    answers = [
        f"{hook} {answer.dtype} {answer.tolist()}" for hook, _, answer in _answers(subject, guard)
    ]
    return "\n".join(answers)


def _calls(
    subject: Subject, guard: HookGuard
) -> Iterator[tuple[Trial, Scene, str, dict[str, Any]]]:
    """Calls of all hooks, with an instance for those of each process."""
    for hooks in subject.processes:
        trial = Trial(subject, guard)
        for scene in (random_scene(1, seed=1), *life(30, 5, seed=2)):
            for hook, arguments in scene.calls(hooks):
                yield trial, scene, hook, arguments


def _answers(subject: Subject, guard: HookGuard, seed: int = 0) -> list[tuple[str, Scene, Any]]:
    """All answers of one instance, with chance as this seed has it."""
    with _chance(seed):
        return [
            (hook, scene, np.asarray(trial.ask(hook, arguments)))
            for trial, scene, hook, arguments in _calls(subject, guard)
        ]


@contextmanager
def _chance(seed: int) -> Iterator[None]:
    """Seeds what is shared by everybody, and puts it back."""
    state, arrays = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed)
    try:
        yield
    finally:
        random.setstate(state)
        np.random.set_state(arrays)


def _difference(hook: str, scene: Scene, one: Any, other: Any) -> str:
    (arguments,) = (each for name, each in scene.calls((hook,)) if name == hook)
    view = answered(arguments)
    if one.shape != other.shape or one.shape != (len(view),):
        return f"{one.tolist()} and {other.tolist()}"
    differs = one != other
    index = int(differs.argmax())
    return f"{one[index]} and {other[index]}{named(view, differs)}"


class _Forbidden(BaseException):
    """In place of a call that no hook may make."""


@contextmanager
def _watching(module: str) -> Iterator[list[str]]:
    """Notes calls of clocks from the policy's package, and sleeps from anywhere; prevents them."""
    package = module.partition(".")[0]
    own = (module,) if package == "cadenza" else (module, package)
    called: list[str] = []

    def watch(frame: FrameType, event: str, argument: Any) -> None:
        if event != "c_call" or not (said := _forbidden(argument)):
            return
        caller = frame.f_globals.get("__name__", "")
        if argument is time.sleep or caller in own or caller.partition(".")[0] in own:
            called.append(said)
            raise _Forbidden

    previous = sys.getprofile()
    sys.setprofile(watch)
    try:
        yield called
    finally:
        # cProfile's is no function, and cannot be set again from here
        sys.setprofile(previous if callable(previous) else None)


def _forbidden(function: Any) -> str | None:
    name, owner = getattr(function, "__name__", ""), getattr(function, "__self__", None)
    if owner is time and (name in _CLOCKS or name == "sleep"):
        return f"time.{name}()"
    if name in ("now", "utcnow", "today") and isinstance(owner, type) and issubclass(owner, date):
        return f"{'datetime' if issubclass(owner, datetime) else 'date'}.{name}()"
    return None


def _contents(view: Any) -> dict[str, Any]:
    """What is in a view, by name, to be compared."""
    if isinstance(view, Columns):
        # What the view gathered once stays; a writer that goes behind it finds the table
        return {
            name: each.take(view._rows, mode="clip").tobytes()
            for name, each in view._columns.items()
        }
    fields = {each.name: getattr(view, each.name) for each in dataclasses.fields(view)}
    return {n: v.tobytes() if isinstance(v, np.ndarray) else v for n, v in fields.items()}
