"""Mistakes as somebody might make them, each of which the simulation has to find.

A fault is somebody's method with another in its place. `test_simulation.py` plants one after
another and looks for a seed that notices. To add one, name what it breaks and put it here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace

from cadenza.engine.policies import EnginePolicies
from cadenza.scheduler.blocks import BlockPool
from cadenza.scheduler.credits import Credits
from cadenza.scheduler.reaping import Reaper
from cadenza.scheduler.scheduler import Scheduler
from cadenza.service.departures import Departures
from cadenza.service.engine_client import EngineClient
from cadenza.service.engine_rows import Rows
from cadenza.service.engine_work import EngineWork
from cadenza.service.generator import Generator
from cadenza.service.resumable_stream import Reader, ResumableStream
from cadenza.service.resumption import Resumption
from cadenza.service.rpc.live import LiveRequests
from cadenza.service.rpc.session import Session
from cadenza.service.stream_flow import StreamFlow
from cadenza.service.stream_log import StreamLog
from cadenza.service.stream_telling import Telling
from cadenza.service.submissions import Submission
from cadenza.service.supervisor import Supervisor
from cadenza.service.suspects import Suspects
from cadenza.service.watchdog import Watchdog
from cadenza.wire.messages import Resubmit


class Fault(NamedTuple):
    """What is wrong, and how to make it so."""

    name: str
    owner: Any
    method: str
    instead: Any


def _resubmitted(change: Callable[[Any], Any]) -> Callable[[Submission], Any]:
    """What the next engine is sent, with its rows changed."""
    real = Submission.message

    def message(self: Submission) -> Any:
        told = real(self)
        return Resubmit(tuple(map(change, told.rows))) if isinstance(told, Resubmit) else told

    return message


def _nothing(*_: Any, **__: Any) -> None:
    """Instead of a method that returns nothing."""


def _one_less(self: StreamLog, place: Any) -> int:
    return max(_find(self, place) - 1, 0)


def _forgets_unread(self: StreamLog) -> None:
    while self.num_bytes > 500:
        entry = self._entries.popleft()
        self._first += 1
        self._first_offsets = entry.offsets
        self.num_bytes -= len(entry.data) + 200


def _drops_one(self: StreamLog, number: int) -> Sequence[Any]:
    return _after(self, number)[1:] if number else _after(self, number)


def _counts_one_too_many(self: Telling, choice: int, num_tokens: int) -> None:
    self._offsets[choice] += num_tokens + 1


def _leaves_reader_asleep(self: Resumption, stream: ResumableStream, number: int) -> Reader:
    asleep, stream.reader = stream.reader, None
    reader = _attach(self, stream, number)
    del asleep
    return reader


def _finds_any(self: Resumption, key: Any, protocol: Any, fingerprint: Any) -> ResumableStream:
    return _find_stream(self, key, protocol, None)


def _own_credit(self: Credits, request: int, requests: Any) -> int:
    return self.open(int(self.left[self.slot_of(request)]), requests)


def _grants_too_much(self: Credits, slot: int, tokens: int) -> None:
    _grant(self, slot, tokens + 1)


async def _does_not_wait(self: Generator, timeout_s: float) -> bool:
    self._draining = True
    return True


def _cancels_silently(self: Session, action: Any) -> None:
    live = self._live.get(action.request_id)
    if live is not None:
        self._forget(live)
        if live.generation is not None:
            live.generation.cancel()
        live.task.cancel()


def _leaks_a_block(self: BlockPool, *tables: Any) -> None:
    _release(self, *(table[:-1] for table in tables))


def _frees_too_early(self: Reaper, departures: Any, now_s: float) -> None:
    _leave(self, departures[:1], now_s)


def _lets_deadlines_pass(self: Reaper, now_s: float) -> Any:
    deadlines_s = self._stores.table.deadline_s
    deadlines_s[deadlines_s <= now_s] = np.inf
    return _expire(self, now_s)


def _condemns_all(self: Suspects) -> Submission | None:
    return next((each for each in self._struck if each.strikes >= 2), None)


def _no_patience(self: Watchdog, now_s: float) -> float:
    client = self._client
    patience_s, client.patience_s = client.patience_s, 0.0
    try:
        return _limit_s(self, now_s)
    finally:
        client.patience_s = patience_s


def _counts_lost_time(self: Watchdog) -> str | None:
    elapsed_s = self._clock() - self._looked_s
    reason = _look(self)
    if self._silent_s:
        self._silent_s += elapsed_s
    return reason


async def _never(*_: object) -> str:
    await asyncio.Event().wait()
    return ""


def _finishes_what_it_has(self: EngineWork, request: int, tokens_kept: int) -> None:
    """A finish that the engine's own end has overtaken ends somebody else."""
    _finish(self, request, tokens_kept)
    if others := [branch.number for branch in self._rows]:
        _finish(self, others[0], tokens_kept)


_find, _after = StreamLog.find, StreamLog.after
_attach, _find_stream = Resumption._attach, Resumption._find
_grant, _release, _leave = Credits.grant, BlockPool.release, Reaper.leave
_expire = Reaper.expire
_finish = EngineWork.finish
_limit_s, _look = Watchdog._limit_s, Watchdog.look

FAULTS = (
    # what a stream has told, and to whom
    Fault("an event is left out behind a place", StreamLog, "after", _drops_one),
    Fault("a stream goes on one event too early", StreamLog, "find", _one_less),
    Fault("tokens are counted twice in places", Telling, "count", _counts_one_too_many),
    Fault("events are forgotten before they are read", StreamLog, "_forget", _forgets_unread),
    Fault("who is taken over is not woken", Resumption, "_attach", _leaves_reader_asleep),
    Fault("another's stream is anybody's", Resumption, "_find", _finds_any),
    Fault("streams are never given up", Resumption, "_expire", _nothing),
    # how a request goes on with another engine
    Fault(
        "output is forgotten",
        Submission,
        "message",
        _resubmitted(lambda row: replace(row, emitted=b"")),
    ),
    Fault(
        "the last token is forgotten",
        Submission,
        "message",
        _resubmitted(lambda row: replace(row, emitted=row.emitted[:-4])),
    ),
    Fault(
        "the first token is told twice",
        Submission,
        "message",
        _resubmitted(lambda row: replace(row, emitted=row.emitted[:4] + row.emitted)),
    ),
    Fault(
        "choices are all the first",
        Submission,
        "message",
        _resubmitted(lambda row: replace(row, choice=0)),
    ),
    Fault(
        "credit is as at first",
        Submission,
        "message",
        _resubmitted(lambda row: replace(row, credit=None)),
    ),
    Fault("nobody is gone on with", EngineWork, "_send_waiting", _nothing),
    Fault("rows of the dead engine count as the next one's", Rows, "interrupt", _nothing),
    # cancels, stops, and who ends first
    Fault(
        "cancels are not told",
        EngineWork,
        "cancel",
        lambda self, request: self._rows.remove(request),
    ),
    Fault("stops are not told", EngineWork, "finish", _nothing),
    Fault("a stop ends somebody else besides", EngineWork, "finish", _finishes_what_it_has),
    Fault("a cancelled request gets no end", Session, "_cancel", _cancels_silently),
    Fault("of several who leave one is seen", Reaper, "leave", _frees_too_early),
    # credit and parking
    Fault("each choice has all of the credit", Credits, "share", _own_credit),
    Fault("grants are not kept", Submission, "grant", _nothing),
    Fault("a grant is one token too large", Credits, "grant", _grants_too_much),
    Fault("what is read is not granted anew", StreamFlow, "let", _nothing),
    # deadlines
    Fault("deadlines pass unseen", Reaper, "expire", _lets_deadlines_pass),
    # blocks
    Fault("a block of each row is lost", BlockPool, "release", _leaks_a_block),
    Fault("cancelled rows stay", Scheduler, "drop", _nothing),
    # names
    Fault("a live name is given to another", LiveRequests, "why_unusable", _nothing),
    # stopping
    Fault("a drain does not wait", Generator, "drain", _does_not_wait),
    Fault("a drain does not notice who leaves", Departures, "note", _nothing),
    # engines that die or hang, and who is to blame
    Fault("a hang is not noticed", Watchdog, "hang", _never),
    Fault("a long pass is a hang", Watchdog, "_limit_s", _no_patience),
    Fault("time that nobody had counts as silence", Watchdog, "look", _counts_lost_time),
    Fault("engines are replaced for ever", Supervisor, "_may_restart", lambda self: True),
    Fault("nobody is found guilty", Suspects, "convict", _nothing),
    Fault("all suspects are guilty", Suspects, "convict", _condemns_all),
    Fault("hooks are not blamed", EngineClient, "blame", _nothing),
    Fault("quarantines end with the engine", EnginePolicies, "restore", _nothing),
)
