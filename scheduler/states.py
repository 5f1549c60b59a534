"""The states of a row, and every legal move between them."""

from __future__ import annotations

from enum import IntEnum


class State(IntEnum):
    """Where a row stands. The values are what the table's `state` column holds."""

    FREE = 0  # no request uses this row
    WAITING = 1  # arrived, never admitted; holds no block
    RUNNING = 2  # has a seat and all blocks of its known tokens
    PREEMPTED = 3  # lost seat and blocks; to be computed again from prompt and output
    SWAPPED = 4  # lost its seat; keys and values that it held alone lie in host blocks
    PARKED = 5  # its reader has no credit; keeps seat and blocks until others need them


TRANSITIONS: dict[State, frozenset[State]] = {
    State.FREE: frozenset({State.WAITING, State.RUNNING}),  # a fork runs from its first breath
    State.WAITING: frozenset({State.RUNNING, State.FREE}),
    State.RUNNING: frozenset({State.PREEMPTED, State.SWAPPED, State.PARKED, State.FREE}),
    State.PREEMPTED: frozenset({State.RUNNING, State.FREE}),
    State.SWAPPED: frozenset({State.RUNNING, State.PREEMPTED, State.FREE}),
    State.PARKED: frozenset({State.RUNNING, State.PREEMPTED, State.SWAPPED, State.FREE}),
}


class FinishReason(IntEnum):
    """Why a row ended. The values are those of `wire.messages.Finished` (tested)."""

    NOT = 0
    EOS = 1
    STOP_TOKEN = 2
    LENGTH = 3
    FAILED = 4
    DEADLINE = 5
    STOPPED = 6  # the front found a stop string
    ABORTED = 7  # the client is gone
