"""How much an instance keeps, counted in elements of what it holds."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

from cadenza.policies.hook_guard import HookGuard
from cadenza.testing.scenes import life
from cadenza.testing.trial import Failure, Subject, Trial

_WAITING = 320
_TURNOVER = 256  # requests that come and go in each step
_STEPS = 32
_SETTLED = 16  # steps by which what is bounded has filled up
_LEAST_GROWTH = 0.02  # elements a request, which nobody who forgets reaches


def check_growth(subject: Subject, guard: HookGuard) -> None:
    """Raises Failure if an instance keeps something of every request that has come and gone.

    What is bounded at more than about 4,000 elements looks as if it were not.
    """
    for hooks in subject.processes:
        _check_instance(Trial(subject, guard), hooks)


def _check_instance(trial: Trial, hooks: Sequence[str]) -> None:
    sizes: dict[int, int] = {}
    for num, scene in enumerate(life(_WAITING, _STEPS, seed=2, turnover=_TURNOVER), start=1):
        for hook, arguments in scene.calls(hooks):
            trial.ask(hook, arguments)
        if num in (_SETTLED, _STEPS):
            sizes[num] = held(trial.instance)
    gone = (_STEPS - _SETTLED) * _TURNOVER
    growth = (sizes[_STEPS] - sizes[_SETTLED]) / gone
    if growth > _LEAST_GROWTH:
        raise Failure(
            f"an instance held {sizes[_SETTLED]} elements after {_SETTLED * _TURNOVER} requests "
            f"had come and gone, and {sizes[_STEPS]} after {_STEPS * _TURNOVER}: {growth:.2f} more "
            "for each; forget requests that neither wait nor run, on_finished or not (whose client "
            "leaves never finishes), or bound what is kept: collections.deque(maxlen=...)"
        )


def held(instance: object) -> int:
    """Elements of all containers and arrays that can be reached from an instance, each once.

    Modules, classes and functions are not its own. A deque with a `maxlen` counts as full.
    """
    seen: set[int] = set()
    stack: list[Any] = [instance]
    num = 0
    while stack:
        each = stack.pop()
        if id(each) in seen or isinstance(each, (type, FunctionType, ModuleType)):
            continue
        seen.add(id(each))
        if isinstance(each, np.ndarray):
            num += each.size
        elif isinstance(each, (str, bytes, bytearray)):
            num += len(each)
        elif isinstance(each, (Mapping, list, tuple, set, frozenset, deque)):
            num += _full(each)
            stack += [*each, *each.values()] if isinstance(each, Mapping) else each
        stack += _attributes(each)
    return num


def _full(container: Any) -> int:
    most = container.maxlen if isinstance(container, deque) else None
    return len(container) if most is None else int(most)


def _attributes(each: object) -> Iterator[object]:
    yield from getattr(each, "__dict__", {}).values()
    for cls in type(each).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(each, name):
                yield getattr(each, name)
