"""The states of a row, and every legal move between them."""

from __future__ import annotations

from enum import Enum


class State(Enum):
    """Where a row stands. The values are what the table's `state` column holds."""

    FREE = 0  # no request uses this row
    WAITING = 1  # arrived, never admitted; holds no block
    RUNNING = 2  # has a seat and all blocks of its known tokens
    PREEMPTED = 3  # lost seat and blocks; to be computed again from prompt and output


TRANSITIONS: dict[State, frozenset[State]] = {
    State.FREE: frozenset({State.WAITING}),
    State.WAITING: frozenset({State.RUNNING, State.FREE}),
    State.RUNNING: frozenset({State.PREEMPTED, State.FREE}),
    State.PREEMPTED: frozenset({State.RUNNING, State.FREE}),
}


class FinishReason(Enum):
    """Why a row ended by itself. The values are those of `wire.messages.Finished` (tested)."""

    NOT = 0
    EOS = 1
    STOP_TOKEN = 2
    LENGTH = 3
    FAILED = 4
