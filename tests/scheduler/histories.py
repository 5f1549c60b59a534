"""What may happen to a request, and in which order, as the decision log tells it."""

from __future__ import annotations

from collections import Counter

from cadenza.scheduler.decisions import (
    Admitted,
    Arrived,
    Cause,
    Decision,
    Displaced,
    Finished,
    HostCopyDropped,
    Parked,
    Preempted,
    RefusedArrival,
    Resumed,
    Starving,
    Unparked,
)
from cadenza.scheduler.plan import StepPlan
from cadenza.scheduler.report import StepReport

# What may follow what, for one request. "starving" marks those that wait.
LEFT = {"arrived", "dropped", "swapped", "copy dropped"}
SEATED = {"admitted", "resumed", "resumed from host", "unparked"}
AFTER: dict[str, set[str]] = {
    "arrived": set(),
    "admitted": {"arrived", "starving"},
    "resumed": {"dropped", "copy dropped", "starving"},
    "resumed from host": {"swapped", "starving"},
    "copy dropped": {"swapped", "starving"},
    "starving": LEFT,
    "parked": SEATED,
    "unparked": {"parked"},
    "displaced": SEATED,
    "dropped": SEATED | {"parked", "displaced"},
    "swapped": SEATED | {"parked", "displaced"},
    "finished": LEFT | SEATED | {"starving", "parked"},
}


class Histories:
    """The last event of every request that is here, and counts of all kinds of event."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()
        self._last: dict[int, str] = {}
        self._on_host: dict[int, bool] = {}

    def extend(self, report: StepReport, plan: StepPlan | None) -> None:
        """One more step.

        Raises:
            AssertionError: a record does not fit what came before, or the report.
        """
        admitted, preempted = [], []
        for record in report.decisions:
            if isinstance(record, Admitted | Resumed):
                admitted.append(record.request)
            elif isinstance(record, Preempted):
                preempted.append(record.request)
            self._add(record)
        assert admitted == report.admitted.tolist(), "the records admit others than the report"
        assert preempted == report.preempted.tolist(), "the records preempt others than the report"
        self.seen["tokens generated"] += int((report.tokens >= 0).sum())
        if plan is not None:
            self.seen["plans"] += 1
            self.seen["tokens computed"] += plan.num_tokens
            self.seen["copies out"] += len(plan.copies.swap_out)
            self.seen["copies in"] += len(plan.copies.swap_in)
            self.seen["copies on write"] += len(plan.copies.on_write)

    def check_ended(self) -> None:
        """Raises AssertionError if somebody has no end."""
        assert not self._last, f"these have no end: {self._last}"

    def _add(self, record: Decision) -> None:
        kind = _kind(record)
        self.seen[kind] += 1
        if kind == "refused":
            return
        before = self._last.get(record.request)
        if before is None:
            assert kind == "arrived", f"{record} of a request that is not here"
        else:
            assert before in AFTER[kind], f"{record} after {before!r}"
        match record:
            case Preempted():
                self._check_cause(record, before)
                self._on_host[record.request] = record.swapped
            case HostCopyDropped() | Resumed(from_host=True):
                assert self._on_host[record.request], f"{record} without a copy on the host"
                self._on_host[record.request] = False
            case Resumed():
                assert not self._on_host[record.request], f"{record} forgot the copy on the host"
        if kind == "finished":
            self.seen[f"ended: {record.reason.name}"] += 1
            del self._last[record.request]
            self._on_host.pop(record.request, None)
        else:
            self._last[record.request] = kind

    def _check_cause(self, record: Preempted, before: str | None) -> None:
        self.seen[f"cause: {record.cause.name}"] += 1
        assert (record.cause is Cause.DISPLACED) == (before == "displaced")
        assert (before == "parked") or record.cause is not Cause.ROOM


def _kind(record: Decision) -> str:
    match record:
        case Arrived():
            return "arrived"
        case Admitted():
            return "admitted"
        case Resumed(from_host=True):
            return "resumed from host"
        case Resumed():
            return "resumed"
        case Preempted(swapped=True):
            return "swapped"
        case Preempted():
            return "dropped"
        case Displaced():
            return "displaced"
        case HostCopyDropped():
            return "copy dropped"
        case Parked():
            return "parked"
        case Unparked():
            return "unparked"
        case Starving():
            return "starving"
        case RefusedArrival():
            return "refused"
        case Finished():
            return "finished"
        case _:
            raise AssertionError(f"nobody may stall: {record}")
