"""Random lives of front and engine in one thread; `SIMULATED=17` runs one seed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from cadenza.scheduler.credits import Credits
from cadenza.scheduler.scheduler import Scheduler
from cadenza.service.engine_rows import Rows
from cadenza.service.engine_work import EngineWork
from cadenza.service.submissions import Submission
from cadenza.wire.messages import Resubmit

from .simulation import simulate

EVERY_DAY = range(60)
SEEDS = [int(os.environ["SIMULATED"])] if "SIMULATED" in os.environ else EVERY_DAY
ENOUGH = 40  # seeds for any of the planted faults


def test_whatever_happens_clients_get_what_they_would_have_got_alone(tell):
    for seed in SEEDS:
        asyncio.run(simulate(seed))
    tell(f"{len(SEEDS)} seeds")


@pytest.mark.extra
@pytest.mark.parametrize("first", range(EVERY_DAY.stop, 460, 100))
def test_the_same_for_more_seeds(first: int):
    for seed in range(first, first + 100):
        asyncio.run(simulate(seed))


def _with(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A message of a submission, with its rows changed."""
    real = Submission.message

    def message(self: Submission) -> Any:
        told = real(self)
        if isinstance(told, Resubmit):
            return Resubmit(tuple(change(row) for row in told.rows))
        return told

    return message


def _own_credit(self: Credits, request: int, requests: Any) -> int:
    return self.open(int(self.left[self.slot_of(request)]), requests)


def _never_again(self: Scheduler, request: int, *, is_stalled: bool) -> None:
    if is_stalled:
        _stall(self, request, is_stalled=True)


_stall = Scheduler.stall

# What, in whose place, and what comes of it
FAULTS: dict[str, tuple[Any, str, Any]] = {
    "output is forgotten": (Submission, "message", _with(lambda row: replace(row, emitted=b""))),
    "the last token is forgotten": (
        Submission,
        "message",
        _with(lambda row: replace(row, emitted=row.emitted[:-4])),
    ),
    "the first token is told twice": (
        Submission,
        "message",
        _with(lambda row: replace(row, emitted=row.emitted[:4] + row.emitted)),
    ),
    "choices are all the first": (
        Submission,
        "message",
        _with(lambda row: replace(row, choice=0)),
    ),
    "credit is as at first": (
        Submission,
        "message",
        _with(lambda row: replace(row, credit=None)),
    ),
    "grants are not kept": (Submission, "grant", lambda self, tokens: None),
    "each choice has all of the credit": (Credits, "share", _own_credit),
    "tokens of choices that ended cost nothing": (
        Submission,
        "remove",
        lambda self, branch: self.branches.pop(branch.number),
    ),
    "nobody is gone on with": (EngineWork, "_send_waiting", lambda self, *, is_idle: None),
    "rows of the dead engine count as the next one's": (Rows, "interrupt", lambda self: None),
    "stalled for ever": (Scheduler, "stall", _never_again),
    "stops are not told": (EngineWork, "finish", lambda self, request, kept: None),
    "cancels are not told": (
        EngineWork,
        "cancel",
        lambda self, request: self._rows.remove(request),
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_found(monkeypatch: pytest.MonkeyPatch, fault: str, tell):
    owner, name, instead = FAULTS[fault]
    monkeypatch.setattr(owner, name, instead)
    for seed in range(ENOUGH):
        try:
            asyncio.run(simulate(seed))
        except Exception:
            tell(f"{fault}: seed {seed}")
            return
    raise AssertionError(f"nobody notices that {fault}")
