"""What a call costs, counted and not timed: lines of Python executed, and memory at its peak.

What one call of C code computes inside is not counted, only the memory that it takes: to look every
element of a list up in another list is quadratic, and not seen here.
"""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import log
from types import FrameType
from typing import Any, NamedTuple

from cadenza.policies.hook_guard import HookGuard
from cadenza.testing.scenes import life
from cadenza.testing.trial import Failure, Subject, Trial

FEW, MANY = 1_000, 4_000  # requests that wait, and as many that run
# All policies together have 10 ms a step, in which Python executes some 200,000 lines
LINES_A_REQUEST = 50
_FREE_LINES = 10_000  # that any call may execute, whatever it is asked about
_FREE_BYTES = 4 << 20
_TRACED = 10
_STEPS = 3  # a new instance meets everybody at once, and then a few new ones in each step
# n log n grows so much from FEW to MANY, and may grow a little more
_GROWTH = 1.25 * (MANY * log(MANY)) / (FEW * log(FEW))


class Cost(NamedTuple):
    """The most that any call of one hook took."""

    lines: int
    num_bytes: int


class _TooMany(BaseException):
    """The call has executed more lines than it may."""


def check_cost(subject: Subject, guard: HookGuard) -> None:
    """Raises Failure for a hook whose cost grows faster than n log n, or is too high at MANY."""
    # Whoever is traced takes many times as long, and does not hang yet
    subject = Subject(subject.policy, subject.options, _TRACED * subject.patience_s)
    _warm_up(subject, guard)
    few, many = (_costs(subject, guard, num) for num in (FEW, MANY))
    for hook, most in many.items():
        least = few[hook]
        if most.lines > _GROWTH * least.lines + _FREE_LINES:
            raise Failure(
                f"{hook} executes {least.lines} lines of Python for {FEW} requests and "
                f"{most.lines} for {MANY}: more than n log n, which would be about "
                f"{_GROWTH * least.lines:.0f}"
            )
        if most.num_bytes > _GROWTH * least.num_bytes + _FREE_BYTES:
            raise Failure(
                f"{hook} takes {least.num_bytes} bytes of memory for {FEW} requests and "
                f"{most.num_bytes} for {MANY}: more than n log n"
            )


def _warm_up(subject: Subject, guard: HookGuard) -> None:
    """What is imported in the first calls is not counted: NumPy does that too."""
    trial = Trial(subject, guard)
    for scene in life(FEW, _STEPS, seed=1):
        for hook, arguments in scene.calls(subject.hooks):
            trial.ask(hook, arguments)


def _costs(subject: Subject, guard: HookGuard, num: int) -> dict[str, Cost]:
    costs: dict[str, Cost] = {}
    traced, weighed = Trial(subject, guard), Trial(subject, guard)
    for scene in life(num, _STEPS, seed=1):
        for hook, arguments in scene.calls(subject.hooks):
            lines = _count_lines(traced, hook, arguments, num)
            num_bytes = _weigh(weighed, hook, arguments)
            most = costs.get(hook, Cost(0, 0))
            costs[hook] = Cost(max(most.lines, lines), max(most.num_bytes, num_bytes))
    return costs


def _count_lines(trial: Trial, hook: str, arguments: dict[str, Any], num: int) -> int:
    limit = _FREE_LINES + LINES_A_REQUEST * num
    with _counting(limit) as executed:
        try:
            trial.ask(hook, arguments)
        except Failure:
            if executed() <= limit:
                raise
    if executed() > limit:
        raise Failure(
            f"{hook} executes more than {limit} lines of Python in a call for {num} requests; "
            f"{LINES_A_REQUEST} for each are all that the time of a step allows"
        )
    return executed()


@contextmanager
def _counting(limit: int) -> Iterator[Callable[[], int]]:
    """Counts lines of Python, and ends whoever executes more than `limit`."""
    num = 0

    def count(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal num
        num += event == "line"
        if num > limit:
            raise _TooMany  # once: Python takes the tracer away, and the guard does the rest
        return count

    previous = sys.gettrace()  # a debugger, or whoever measures coverage
    sys.settrace(count)
    try:
        yield lambda: num
    finally:
        sys.settrace(previous)


def _weigh(trial: Trial, hook: str, arguments: dict[str, Any]) -> int:
    """Bytes that a call allocates at its peak, NumPy's included."""
    is_on = tracemalloc.is_tracing()
    if not is_on:
        tracemalloc.start()
    try:
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        trial.ask(hook, arguments)
        _, peak = tracemalloc.get_traced_memory()
        return peak - before
    finally:
        if not is_on:
            tracemalloc.stop()
