"""Policies that must not pass, each for the reason that its docstring gives."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np

from cadenza.policies import ArrivalColumns, RequestColumns, StepView, hookimpl

Scores = np.ndarray[Any, np.dtype[np.float64]]


class AnswersNan:
    """Divides by the wait of those who have just arrived."""

    name = "answers-nan"

    @hookimpl
    def order_admissions(self, waiting: RequestColumns, step: StepView) -> Scores:
        waits_s = np.maximum(step.now_s - waiting.waits_since_s - 30, 0.0)
        with np.errstate(invalid="ignore"):
            return waits_s / waits_s


class AnswersOneTooMany:
    """Has an element more than there are requests."""

    name = "answers-one-too-many"

    @hookimpl
    def order_admissions(self, waiting: RequestColumns) -> Scores:
        return np.zeros(len(waiting) + 1)


class AnswersAList:
    """Masks are arrays of booleans."""

    name = "answers-a-list"

    @hookimpl
    def guard_starvation(self, waiting: RequestColumns) -> list[bool]:
        return [False] * len(waiting)


class FailsForNobody:
    """The least of none is an error, unless somebody says what it is."""

    name = "fails-for-nobody"

    @hookimpl
    def order_admissions(self, waiting: RequestColumns) -> Scores:
        return (waiting.arrival - waiting.arrival.min()).astype(np.float64)


class WritesToAColumn:
    """Takes the array that it is given for its own."""

    name = "writes-to-a-column"

    @hookimpl
    def order_admissions(self, waiting: RequestColumns) -> Scores:
        scores = waiting.arrival_s
        scores += waiting.priority
        return scores


class WritesBehindTheView:
    """Finds the memory that is not sealed."""

    name = "writes-behind-the-view"

    @hookimpl
    def order_admissions(self, waiting: RequestColumns) -> Scores:
        waiting._columns["priority"] += 1
        return waiting.arrival.astype(np.float64)


class KeepsTheView:
    """Compares with those who waited in the step before."""

    name = "keeps-the-view"

    @hookimpl
    def order_admissions(self, waiting: RequestColumns) -> Scores:
        self._last = waiting
        return waiting.arrival.astype(np.float64)


class Shuffles:
    """A lottery."""

    name = "shuffles"

    @hookimpl
    def order_admissions(self, waiting: RequestColumns) -> Scores:
        return np.array([random.random() for _ in range(len(waiting))])


class GoesByHash:
    """Tenants in the order in which a set has their names."""

    name = "goes-by-hash"

    @hookimpl
    def order_admissions(self, waiting: RequestColumns) -> Scores:
        names = [f"tenant {tenant}" for tenant in waiting.tenant.tolist()]
        ranks = {name: float(rank) for rank, name in enumerate(set(names))}
        return np.array([ranks[name] for name in names], dtype=np.float64)


class ReadsAClock:
    """Waits by its own watch."""

    name = "reads-a-clock"

    @hookimpl
    def order_admissions(self, waiting: RequestColumns) -> Scores:
        return waiting.waits_since_s - time.monotonic()


class ReadsTheDate:
    """At night batches go first."""

    name = "reads-the-date"

    @hookimpl
    def order_admissions(self, waiting: RequestColumns) -> Scores:
        sign = -1.0 if datetime.now(UTC).hour < 6 else 1.0
        return sign * waiting.priority


class WaitsForAnEvent:
    """Of a thread that never comes."""

    name = "waits-for-an-event"

    @hookimpl
    def order_admissions(self, waiting: RequestColumns) -> None:
        threading.Event().wait(60)


class Sleeps:
    """Waits for better requests."""

    name = "sleeps"

    @hookimpl
    def order_admissions(self, waiting: RequestColumns) -> None:
        time.sleep(60)


class ComparesAllPairs:
    """Counts for each request those that are more urgent, one by one."""

    name = "compares-all-pairs"

    @hookimpl
    def order_admissions(self, waiting: RequestColumns) -> Scores:
        priorities = waiting.priority.tolist()
        scores = np.zeros(len(waiting))
        for index, mine in enumerate(priorities):
            for other in priorities:
                scores[index] += other < mine
        return scores


class ComparesAFew:
    """Quadratic, with so small a factor that only the growth tells."""

    name = "compares-a-few"

    @hookimpl
    def order_admissions(self, waiting: RequestColumns) -> Scores:
        scores = np.zeros(len(waiting))
        for index in range(len(waiting)):
            for _ in range(0, index, 500):
                scores[index] += 1
        return scores


class ComparesInAMatrix:
    """All pairs at once."""

    name = "compares-in-a-matrix"

    @hookimpl
    def order_admissions(self, waiting: RequestColumns) -> Scores:
        urgent = waiting.priority[:, None] > waiting.priority
        return urgent.sum(axis=1).astype(np.float64)


class Hangs:
    """Nobody gets out of this loop by asking."""

    name = "hangs"

    @hookimpl
    def order_admissions(self, waiting: RequestColumns) -> Scores:
        while True:
            try:
                while True:
                    pass
            except BaseException:
                continue


class PrefersATenant:
    """Says that it is fair among tenants, so the guard leaves it alone; and is not."""

    name = "prefers-a-tenant"
    overtakes_within_tenant = True

    @hookimpl
    def order_admissions(self, waiting: RequestColumns) -> Scores:
        return -waiting.tenant.astype(np.float64)


class Remembers:
    """Keeps a figure of every request that it has ever seen."""

    name = "remembers"

    def __init__(self) -> None:
        self._first_seen_s: dict[int, float] = {}

    @hookimpl
    def order_admissions(self, waiting: RequestColumns, step: StepView) -> Scores:
        for request in waiting.request.tolist():
            self._first_seen_s.setdefault(request, step.now_s)
        return np.array([self._first_seen_s[each] for each in waiting.request.tolist()])


class WaitsForTheEnd:
    """Forgets requests that finish, and those whose client hangs up never do."""

    name = "waits-for-the-end"

    def __init__(self) -> None:
        self._admitted_s: dict[int, float] = {}

    @hookimpl
    def on_admitted(self, admitted: RequestColumns, step: StepView) -> None:
        self._admitted_s.update(dict.fromkeys(admitted.request.tolist(), step.now_s))

    @hookimpl
    def on_finished(self, finished: RequestColumns) -> None:
        for request in finished.request.tolist():
            self._admitted_s.pop(request, None)


class FailsLater:
    """Its state is not what it thinks once a request comes back from a preemption."""

    name = "fails-later"

    def __init__(self) -> None:
        self._entered: set[int] = set()

    @hookimpl
    def on_admitted(self, admitted: RequestColumns) -> None:
        for request in admitted.request.tolist():
            if request in self._entered:
                raise RuntimeError(f"request {request} entered twice")
            self._entered.add(request)

    @hookimpl
    def on_finished(self, finished: RequestColumns) -> None:
        self._entered -= set(finished.request.tolist())


class ExpectsToKnowThem:
    """Whoever ends must have been seen to enter, which an instance built anew has not."""

    name = "expects-to-know-them"

    def __init__(self) -> None:
        self._entered: set[int] = set()

    @hookimpl
    def on_admitted(self, admitted: RequestColumns) -> None:
        self._entered |= set(admitted.request.tolist())

    @hookimpl
    def on_finished(self, finished: RequestColumns) -> None:
        for request in finished.request.tolist():
            self._entered.remove(request)


class ForgetsItsDefault:
    """Cannot be built without an option."""

    name = "forgets-its-default"

    @dataclass(frozen=True)
    class Options:
        weight: float

    def __init__(self, options: Options) -> None:
        self._weight = options.weight

    @hookimpl
    def order_admissions(self, waiting: RequestColumns) -> Scores:
        return self._weight * waiting.arrival


class SharesWithItsTwin:
    """Expects the instance that is told of admissions to be the one that is asked at arrivals."""

    name = "shares-with-its-twin"

    @hookimpl
    def on_admitted(self, admitted: RequestColumns) -> None:
        self._last = int(admitted.request[-1])

    @hookimpl
    def shed_load(self, waiting: ArrivalColumns) -> Scores:
        return np.full(len(waiting), float(self._last))
