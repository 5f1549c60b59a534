"""The request table: one row a request, one NumPy array a field.

What only running rows need is indexed by seat instead: block tables, and the tail buffer that
holds the newest tokens until a block of them is full. Rows and seats are reused; request ids never
are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from cadenza.policies.views import RequestColumns
from cadenza.scheduler.request import MAX_STOP_TOKEN_IDS, Arrival, Request
from cadenza.scheduler.states import TRANSITIONS, State

Rows = npt.NDArray[np.intp]

_COLUMNS: dict[str, Any] = {
    "state": np.int8,
    "request": np.int64,
    "arrival": np.int64,
    "arrival_s": np.float64,
    "priority": np.int64,
    "prompt_tokens": np.int64,
    "num_tokens": np.int64,  # prompt and output
    "computed_tokens": np.int64,  # keys and values are in the cache
    "generated_tokens": np.int64,
    "max_tokens": np.int64,
    "blocks_held": np.int64,
    "matched_blocks": np.int64,  # leading blocks found in the prefix index when it was seated
    "published_blocks": np.int64,  # leading blocks offered to the prefix index
    "admission": np.int64,
    "preemptions": np.int64,
    "overtakes": np.int64,
    "seat": np.int64,  # -1: none
    "ignore_eos": np.bool_,
    "has_stop_ids": np.bool_,
}

_NO_SEAT = -1
_NO_TOKEN = -1


class RequestTable:
    """Columns, seats and cold state; moves rows between states and keeps the seats' buffers."""

    state: npt.NDArray[np.int8]
    request: npt.NDArray[np.int64]
    arrival: npt.NDArray[np.int64]
    arrival_s: npt.NDArray[np.float64]
    priority: npt.NDArray[np.int64]
    prompt_tokens: npt.NDArray[np.int64]
    num_tokens: npt.NDArray[np.int64]
    computed_tokens: npt.NDArray[np.int64]
    generated_tokens: npt.NDArray[np.int64]
    max_tokens: npt.NDArray[np.int64]
    blocks_held: npt.NDArray[np.int64]
    matched_blocks: npt.NDArray[np.int64]
    published_blocks: npt.NDArray[np.int64]
    admission: npt.NDArray[np.int64]
    preemptions: npt.NDArray[np.int64]
    overtakes: npt.NDArray[np.int64]
    seat: npt.NDArray[np.int64]
    ignore_eos: npt.NDArray[np.bool_]
    has_stop_ids: npt.NDArray[np.bool_]

    def __init__(self, *, num_seats: int, max_model_len: int, block_size: int) -> None:
        self.num_seats = num_seats
        self.max_model_len = max_model_len
        self.block_size = block_size
        self.block_table = np.zeros((num_seats, -(-max_model_len // block_size)), dtype=np.int32)
        self.tail = np.zeros((num_seats, block_size), dtype=np.int32)
        self.columns: dict[str, npt.NDArray[Any]] = {}
        self.stop_token_ids = np.empty((0, MAX_STOP_TOKEN_IDS), dtype=np.int32)
        self._cold: dict[int, Request] = {}
        self._row_of: dict[int, int] = {}
        self._free_rows: list[int] = []
        self._free_seats = list(range(num_seats - 1, -1, -1))
        self._arrivals = 0
        self._admissions = 0
        self._grow(64)

    def __len__(self) -> int:
        return len(self._row_of)

    def __contains__(self, request: int) -> bool:
        return request in self._row_of

    @property
    def free_seats(self) -> int:
        return len(self._free_seats)

    def view(self, rows: Rows) -> RequestColumns:
        """These rows as a policy sees them."""
        return RequestColumns(self.columns, rows)

    def row_of(self, request: int) -> int | None:
        """The row of a live request."""
        return self._row_of.get(request)

    def cold(self, row: int) -> Request:
        return self._cold[row]

    def running(self) -> Rows:
        """Rows with a seat, earliest admission first."""
        rows = np.flatnonzero(self.state == State.RUNNING.value)
        return rows[np.argsort(self.admission[rows])]

    def waiting(self) -> Rows:
        """Rows that want a seat, earliest arrival first."""
        wanting = (self.state == State.WAITING.value) | (self.state == State.PREEMPTED.value)
        rows = np.flatnonzero(wanting)
        return rows[np.argsort(self.arrival[rows])]

    def blocks(self, row: int) -> npt.NDArray[np.int32]:
        """The row's block table: a view, in sequence order."""
        seat = self.seat[row]
        if seat == _NO_SEAT:
            return self.block_table[0, :0]
        return self.block_table[seat, : self.blocks_held[row]]

    def blocks_for(self, row: int) -> int:
        """Blocks that all known tokens of the row take."""
        return -(-int(self.num_tokens[row]) // self.block_size)

    def add(self, arrival: Arrival, now_s: float) -> int:
        """A new WAITING row."""
        if not self._free_rows:
            self._grow(2 * len(self.state))
        row = self._free_rows.pop()
        self._move(row, State.WAITING)
        tokens = np.concatenate((arrival.prompt, arrival.emitted)).astype(np.int32)
        self.request[row] = arrival.request
        self.arrival[row] = self._arrivals
        self.arrival_s[row] = now_s
        self.priority[row] = arrival.priority
        self.prompt_tokens[row] = len(arrival.prompt)
        self.num_tokens[row] = len(tokens)
        self.generated_tokens[row] = len(arrival.emitted)
        # What the context has no room for is nobody's future, least of all a reservation's.
        self.max_tokens[row] = min(arrival.max_tokens, self.max_model_len - len(arrival.prompt))
        self.admission[row] = self.seat[row] = -1
        for name in ("computed_tokens", "blocks_held", "matched_blocks", "published_blocks"):
            self.columns[name][row] = 0
        self.preemptions[row] = self.overtakes[row] = 0
        self.ignore_eos[row] = arrival.ignore_eos
        self.has_stop_ids[row] = bool(arrival.stop_token_ids)
        self._arrivals += 1
        self._row_of[arrival.request] = row
        self.stop_token_ids[row] = _NO_TOKEN
        self.stop_token_ids[row, : len(arrival.stop_token_ids)] = sorted(arrival.stop_token_ids)
        self._cold[row] = Request(tokens, arrival.cache_salt)
        return row

    def seat_row(self, row: int, blocks: npt.NDArray[np.int32], computed: int) -> None:
        """Give a waiting row a seat and the blocks of all its tokens, `computed` of them valid."""
        self._move(row, State.RUNNING)
        seat = self._free_seats.pop()
        self.seat[row] = seat
        self.block_table[seat, : len(blocks)] = blocks
        self.blocks_held[row] = len(blocks)
        self.computed_tokens[row] = computed
        self.matched_blocks[row] = self.published_blocks[row] = computed // self.block_size
        self.admission[row] = self._admissions
        self._admissions += 1
        cold = self._cold[row]
        known = int(self.num_tokens[row])
        cold.make_room(int(self.prompt_tokens[row] + self.max_tokens[row]))
        start = (known - 1) // self.block_size * self.block_size
        self.tail[seat, : known - start] = cold.tokens[start:known]

    def unseat_row(self, row: int) -> None:
        """RUNNING to PREEMPTED: the tail is flushed, seat and block table are given up."""
        self._flush_partial(row)
        self._move(row, State.PREEMPTED)
        self._give_up_seat(row)
        self.computed_tokens[row] = self.published_blocks[row] = 0
        self.preemptions[row] += 1

    def remove(self, row: int) -> None:
        """Forget a row in any state. Its blocks must have been released."""
        self._move(row, State.FREE)
        self._give_up_seat(row)
        del self._row_of[int(self.request[row])]
        del self._cold[row]
        self._free_rows.append(row)

    def append_tokens(self, rows: Rows, tokens: npt.NDArray[np.int32]) -> None:
        """One new token for each of these running rows."""
        size = self.block_size
        self.tail[self.seat[rows], self.num_tokens[rows] % size] = tokens
        self.num_tokens[rows] += 1
        self.generated_tokens[rows] += 1
        for row in rows[self.num_tokens[rows] % size == 0]:
            end = int(self.num_tokens[row])
            self._cold[row].tokens[end - size : end] = self.tail[self.seat[row]]

    def append_blocks(self, rows: Rows, blocks: npt.NDArray[np.int32]) -> None:
        """One more block for each of these running rows."""
        self.block_table[self.seat[rows], self.blocks_held[rows]] = blocks
        self.blocks_held[rows] += 1

    def _flush_partial(self, row: int) -> None:
        end = int(self.num_tokens[row])
        partial = end % self.block_size
        if partial:
            self._cold[row].tokens[end - partial : end] = self.tail[self.seat[row], :partial]

    def _give_up_seat(self, row: int) -> None:
        if self.seat[row] != _NO_SEAT:
            self._free_seats.append(int(self.seat[row]))
        self.seat[row] = _NO_SEAT
        self.blocks_held[row] = 0

    def _move(self, row: int, to: State) -> None:
        state = State(int(self.state[row]))
        assert to in TRANSITIONS[state], f"row {row} cannot go from {state.name} to {to.name}"
        self.state[row] = to.value

    def _grow(self, size: int) -> None:
        old = len(self.columns["state"]) if self.columns else 0
        for name, dtype in _COLUMNS.items():
            column = np.zeros(size, dtype=dtype)
            if old:
                column[:old] = self.columns[name]
            self.columns[name] = column
            setattr(self, name, column)
        more = np.full((size - old, MAX_STOP_TOKEN_IDS), _NO_TOKEN, dtype=np.int32)
        self.stop_token_ids = np.concatenate((self.stop_token_ids, more))
        self._free_rows.extend(range(size - 1, old - 1, -1))
