"""What the scheduler decided about each request, as typed records.

A record is made where a request changes state, never for a row that merely goes on, so that the
log costs nothing in a steady step. Nobody changes a record. None can be part of a cycle, so the
garbage collector need not know of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from enum import Enum
from itertools import chain
from typing import TypeAlias

import msgspec

from cadenza.scheduler.states import FinishReason


class _Record(msgspec.Struct, gc=False):
    step_id: int
    time_s: float  # the clock of `Scheduler.step`
    request: int


class Arrived(_Record):
    """The request waits from now on."""

    prompt_tokens: int
    cached_tokens: int  # of its prompt, found in the prefix index at that moment


class Admitted(_Record):
    """It got its first seat."""

    rank: int  # place in this step's order, 0 the first
    wait_s: float
    cached_tokens: int
    starving: bool


class Cause(Enum):
    """Why a request was preempted."""

    MEMORY = "memory"  # running requests lacked blocks
    ROOM = "room"  # it was parked, and others wanted its seat or its blocks
    DISPLACED = "displaced"  # a policy gave its place to another
    FORCED = "forced"  # it was asked for


class Preempted(_Record):
    """It lost its seat. Both costs are the model's estimates when the choice was made."""

    cause: Cause
    swapped: bool
    recompute_s: float
    swap_s: float


class Displaced(_Record):
    """A policy let `by` have its place. A `Preempted` follows."""

    by: int


class Resumed(_Record):
    """It got a seat again."""

    rank: int
    wait_s: float  # since its preemption
    cached_tokens: int  # that need not be computed again, swapped-in ones included
    from_host: bool


class HostCopyDropped(_Record):
    """A shared block was evicted meanwhile, so the swapped request is recomputed after all."""


class Parked(_Record):
    """Its reader has no credit left."""


class Unparked(_Record):
    """Its reader has credit again, and it still has its seat."""


class Starving(_Record):
    """A guard marked it for the first time since it arrived or was preempted."""

    overtakes: int
    wait_s: float


class RefusedArrival(_Record):
    """It was not taken."""

    message: str


class Stalled(_Record):
    """The watchdog failed it: no step made progress for too long. A `Finished` follows."""

    steps: int


class Finished(_Record):
    """It is gone."""

    reason: FinishReason
    generated_tokens: int


Decision: TypeAlias = (
    Arrived
    | Admitted
    | Preempted
    | Displaced
    | Resumed
    | HostCopyDropped
    | Parked
    | Unparked
    | Starving
    | RefusedArrival
    | Stalled
    | Finished
)


class DecisionLog:
    """Records to be drained, `size` at most, and `remembered` of those that were.

    What falls out before it was drained is counted. Few are remembered, as whoever drains the log
    keeps what it wants, and to forget an old record takes longer than to make one.
    """

    def __init__(self, size: int = 65_536, remembered: int = 1024) -> None:
        self._new: deque[Decision] = deque(maxlen=size)
        self._drained: deque[Decision] = deque(maxlen=remembered)
        self.lost = 0

    def __iter__(self) -> Iterator[Decision]:
        """All that is known, oldest first."""
        return chain(self._drained, self._new)

    def append(self, record: Decision) -> None:
        self.lost += len(self._new) == self._new.maxlen
        self._new.append(record)

    def drain(self) -> tuple[Decision, ...]:
        """The records since the last call, oldest first."""
        new = tuple(self._new)
        self._drained += new
        self._new.clear()
        return new

    def timeline(self, request: int) -> list[Decision]:
        """What is still known of one request, oldest first."""
        return [record for record in self if record.request == request]
