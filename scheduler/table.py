"""The request table: one row a request, one NumPy array a field.

What only seated rows need is indexed by seat instead: block tables and token histories. Rows and
seats are reused; request numbers never are. A prompt with several choices is one row until its
choices draw their first tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from cadenza.policies.tenants import Tenants
from cadenza.policies.views import Column, RequestColumns
from cadenza.scheduler.columns import Columns, IntColumn, where
from cadenza.scheduler.request import MAX_STOP_TOKEN_IDS, NO_TOKENS, Arrival, Request
from cadenza.scheduler.states import TRANSITIONS, State

Rows = npt.NDArray[np.intp]

NO_SEAT = -1
_NO_TOKEN = -1
# Names of their own: to look a member up on its class takes longer than to move a row
_FREE, _WAITING, _RUNNING = State.FREE, State.WAITING, State.RUNNING
# Plain numbers, since NumPy takes several times as long to compare with a member
_PARKED, _SWAPPED = State.PARKED.value, State.SWAPPED.value
_WAITS = frozenset({State.WAITING.value, State.PREEMPTED.value, State.SWAPPED.value})
_LEGAL = [np.array([to in TRANSITIONS[at] for at in State]) for to in State]  # [to][at]


class RequestTable(Columns):
    """Columns, seats and cold state; moves rows between states and keeps the seats' buffers."""

    def __init__(self, *, num_seats: int, max_model_len: int, block_size: int) -> None:
        super().__init__()
        self.num_seats = num_seats
        self.max_model_len = max_model_len
        self.block_size = block_size
        most_blocks = -(-max_model_len // block_size)
        self.block_table = np.zeros((num_seats, most_blocks), dtype=np.int32)
        # Taken from the system page by page, as histories first grow so long
        self.history_blocks = np.zeros((num_seats, most_blocks, block_size), dtype=np.int32)
        self.history = self.history_blocks.reshape(num_seats, -1)
        self.row_at = np.full(num_seats, -1, dtype=np.intp)  # by the seat of a row's first choice
        self.stop_token_ids = np.empty((0, MAX_STOP_TOKEN_IDS), dtype=np.int32)
        self.num_parked = self.num_swapped = 0
        self.num_several = 0  # rows that stand for several choices
        self.may_share_tails = False  # whether any row has `shares_tail`
        self._tenants = Tenants()
        self.tenants = self._tenants.numbers  # by name
        self._cold: dict[int, Request] = {}
        self._row_of: dict[int, int] = {}  # by choice
        self._free_rows: list[int] = []
        self._free_seats = list(range(num_seats - 1, -1, -1))
        self._arrivals = self._admissions = 0
        self._shown: dict[str, Column] = {}
        self._make_rows(64)

    def __len__(self) -> int:
        """Choices that are here, in any state."""
        return len(self._row_of)

    def __contains__(self, request: int) -> bool:
        return request in self._row_of

    def __iter__(self) -> Iterator[int]:
        """Rows in use."""
        return iter(self._cold)

    @property
    def free_seats(self) -> int:
        return len(self._free_seats)

    def view(self, rows: Rows) -> RequestColumns:
        """These rows as a policy sees them."""
        return RequestColumns(self.visible, rows)

    def show(self, name: str, column: Column) -> None:
        """Let policies see a column that is not one of the table's."""
        self._shown[name] = self.visible[name] = column

    def row_of(self, request: int) -> int | None:
        """The row that a live choice belongs to."""
        return self._row_of.get(request)

    def cold(self, row: int) -> Request:
        return self._cold[row]

    def seated(self) -> Rows:
        """Rows with a seat, parked ones included."""
        return self.row_at[self.row_at >= 0]

    def running(self) -> Rows:
        """Rows with a seat that are not parked."""
        rows = self.seated()
        return rows[~self.parked[rows]] if self.num_parked else rows

    def waiting(self) -> Rows:
        """Rows that want a seat."""
        return where(self.waits)

    def earliest_deadline_s(self) -> float:
        """The earliest deadline of any row; +inf if none has one."""
        used = self.state != State.FREE
        return float(self.deadline_s.min(initial=float("inf"), where=used))

    def blocks(self, row: int) -> npt.NDArray[np.int32]:
        """The row's block table: a view, in sequence order."""
        seat = self.seat[row]
        if seat == NO_SEAT:
            return self.block_table[0, :0]
        return self.block_table[seat, : self.blocks_held[row]]

    def block_lists(self, rows: Rows) -> list[npt.NDArray[np.int32]]:
        """`blocks` of each of the rows."""
        held = zip(self.seat[rows].tolist(), self.blocks_held[rows].tolist(), strict=True)
        return [self.block_table[seat, :num] for seat, num in held]  # none without a seat

    def add(self, arrival: Arrival, now_s: float) -> int:
        """A new WAITING row for all choices of the arrival."""
        row = self._take_row()
        self._move(row, _WAITING)
        tokens = np.concatenate((arrival.prompt, arrival.emitted)).astype(np.int32)
        self.request[row] = arrival.request
        self.choices[row] = arrival.n
        self.num_several += arrival.n > 1
        self.arrival[row] = self._arrivals
        self.arrival_s[row] = self.waits_since_s[row] = self.last_run_s[row] = now_s
        self.tenant[row] = self._tenants.enter(arrival.tenant)
        self.priority[row] = arrival.priority
        self.deadline_s[row] = arrival.deadline_s
        self.ttft_target_s[row] = arrival.ttft_target_s
        self.tpot_target_s[row] = arrival.tpot_target_s
        self.prompt_tokens[row] = len(arrival.prompt)
        self.num_tokens[row] = len(tokens)
        self.generated_tokens[row] = len(arrival.emitted)
        self.resumed[row] = len(arrival.emitted) > 0
        # What the context has no room for is nobody's future, least of all a reservation's.
        self.max_tokens[row] = min(arrival.max_tokens, self.max_model_len - len(arrival.prompt))
        self.predicted_tokens[row] = arrival.predicted_tokens
        self.admission[row] = self.seat[row] = -1
        self.ignore_eos[row] = arrival.ignore_eos
        self.may_swap[row] = arrival.may_swap
        self.may_recompute[row] = arrival.may_recompute
        self.has_stop_ids[row] = bool(arrival.stop_token_ids)
        self.stop_token_ids[row] = _NO_TOKEN
        self.stop_token_ids[row, : len(arrival.stop_token_ids)] = sorted(arrival.stop_token_ids)
        self._arrivals += arrival.n
        self._row_of.update(dict.fromkeys(arrival.requests, row))
        self._cold[row] = Request(tokens, arrival.cache_salt, tuple(arrival.requests))
        return row

    def take_seats(self, cold: Request) -> None:
        """Set seats aside for all choices of a waiting row; `seat_rows` follows in this step."""
        cold.seats = tuple([self._free_seats.pop() for _ in cold.choices])

    def seat_rows(
        self, rows: Rows, tables: Sequence[npt.NDArray[np.int32]], computed: IntColumn
    ) -> None:
        """Let waiting rows sit down on the seats they took.

        tables: their blocks. computed: how many of their tokens are in these already.
        """
        self._move_all(rows, _RUNNING)
        cold = [self._cold[row] for row in rows.tolist()]
        seats = [each.seats[0] for each in cold]
        self.seat[rows], self.row_at[seats] = seats, rows
        for seat, each, blocks in zip(seats, cold, tables, strict=True):
            self.block_table[seat, : len(blocks)] = blocks
            self.history[seat, : len(each.tokens)] = each.tokens
            each.tokens = NO_TOKENS
        self.blocks_held[rows] = [len(blocks) for blocks in tables]
        self.computed_tokens[rows] = computed
        self.shares_tail[rows] = False
        self.overtakes[rows] = self.host_tokens[rows] = 0
        fresh = rows[self.admission[rows] < 0]
        ends = self._admissions + self.choices[fresh].cumsum()
        self.admission[fresh] = ends - self.choices[fresh]
        if len(fresh):
            self._admissions = int(ends[-1])

    def unseat_row(self, row: int, to: State) -> None:
        """PREEMPTED or SWAPPED: the history is kept, seats and block table are given up."""
        self._cold[row].tokens = self.ids(row).copy()
        self._move(row, to)
        self._give_up_seats(row)
        self.host_tokens[row] = self.computed_tokens[row] if to is State.SWAPPED else 0
        self.computed_tokens[row] = self.published_blocks[row] = 0
        self.promised_blocks[row] = self.pinned_until[row] = 0
        self.starving[row] = False
        self.preemptions[row] += 1

    def move(self, row: int, to: State) -> None:
        """Change the state of a row that keeps what it holds: parked, unparked, host copy lost."""
        assert to in (State.PARKED, State.RUNNING, State.PREEMPTED)
        self._move(row, to)
        self.host_tokens[row] = 0

    def fork(self, row: int) -> Rows:
        """Give every choice a row of its own, sharing all blocks; `row` stays with the first.

        The caller adds the references. Returns the rows in order of choice.
        """
        cold, rows = self._cold[row], [row]
        partial = bool(self.num_tokens[row] % self.block_size)
        self.shares_tail[row] = partial
        self.may_share_tails |= partial
        self.choices[row], self.promised_blocks[row] = 1, 0
        self.num_several -= 1
        for rank in range(1, len(cold.choices)):
            branch = self._take_row()
            self.copy(row, branch)
            self._tenants.hold(int(self.tenant[row]))
            self.stop_token_ids[branch] = self.stop_token_ids[row]
            self.request[branch] = cold.choices[rank]
            self.arrival[branch] += rank
            self.admission[branch] += rank
            self._row_of[cold.choices[rank]] = branch
            self._cold[branch] = cold.branch(rank)
            seat = cold.seats[rank]
            self.block_table[seat] = self.block_table[self.seat[row]]
            known = int(self.num_tokens[row])
            self.history[seat, :known] = self.history[self.seat[row], :known]
            self._sit(branch, seat)
            rows.append(branch)
        cold.choices, cold.seats = cold.choices[:1], cold.seats[:1]
        return np.array(rows, dtype=np.intp)

    def drop_choice(self, row: int, request: int) -> None:
        """Forget one of several choices of a row, with its seat."""
        cold = self._cold[row]
        index = cold.choices.index(request)
        del self._row_of[request]
        cold.choices = cold.choices[:index] + cold.choices[index + 1 :]
        self.choices[row] -= 1
        self.num_several -= self.choices[row] == 1
        self.request[row] = cold.choices[0]
        if not cold.seats:
            return
        seat = cold.seats[index]
        cold.seats = cold.seats[:index] + cold.seats[index + 1 :]
        if index == 0:
            self.row_at[seat] = -1
            self._sit(row, cold.seats[0])
            self.block_table[cold.seats[0]] = self.block_table[seat]
            self.history[cold.seats[0]] = self.history[seat]
        self._free_seats.append(seat)

    def remove(self, rows: Rows) -> None:
        """Forget rows in any state, with all their choices. Their blocks must be released."""
        self._move_all(rows, _FREE)
        seats = self.seat[rows]
        self.row_at[seats[seats != NO_SEAT]] = -1
        self.seat[rows] = NO_SEAT
        if self.num_several:
            self.num_several -= int(np.count_nonzero(self.choices[rows] > 1))
        self.blocks_held[rows] = self.choices[rows] = 0
        for row in rows.tolist():
            cold = self._cold.pop(row)
            self._free_seats += cold.seats[::-1]
            for request in cold.choices:
                del self._row_of[request]
        for tenant in self.tenant[rows].tolist():
            self._tenants.leave(tenant)
        self._free_rows.extend(rows.tolist())

    def append_tokens(self, rows: Rows, tokens: npt.NDArray[np.int32]) -> IntColumn:
        """One new token for each of these running rows; returns how many each has generated."""
        known = self.num_tokens[rows]
        self.history[self.seat[rows], known] = tokens
        self.num_tokens[rows] = known + 1
        generated: IntColumn = self.generated_tokens[rows] + 1
        self.generated_tokens[rows] = generated
        return generated

    def append_blocks(self, rows: Rows, blocks: npt.NDArray[np.int32]) -> None:
        """One more block for each of these running rows."""
        self.block_table[self.seat[rows], self.blocks_held[rows]] = blocks
        self.blocks_held[rows] += 1

    def own_tails(self, rows: Rows) -> None:
        """These rows hold their last blocks alone, or are the only ones to write to them."""
        self.shares_tail[rows] = False
        self.may_share_tails = bool(self.shares_tail.any())

    def replace_tail(self, row: int, block: int) -> None:
        """Put another block in the place of the row's last one."""
        self.block_table[self.seat[row], self.blocks_held[row] - 1] = block

    def ids(self, row: int) -> npt.NDArray[np.int32]:
        """All ids of a row, prompt and output. A view, which may change with the next token."""
        if self.seat[row] == NO_SEAT:
            return self._cold[row].tokens
        return self.history[self.seat[row], : int(self.num_tokens[row])]

    def _sit(self, row: int, seat: int) -> None:
        self.seat[row] = seat
        self.row_at[seat] = row

    def _give_up_seats(self, row: int) -> None:
        if self.seat[row] != NO_SEAT:
            self.row_at[self.seat[row]] = -1
        cold = self._cold[row]
        self._free_seats.extend(reversed(cold.seats))
        cold.seats = ()
        self.seat[row] = NO_SEAT
        self.blocks_held[row] = 0

    def _move(self, row: int, to: State) -> None:
        self._move_all(np.array([row]), to)

    def _move_all(self, rows: Rows, to: State) -> None:
        states = self.state[rows]
        legal = _LEGAL[to][states]
        if np.count_nonzero(legal) < len(rows):
            row, state = rows[legal.argmin()], State(states[legal.argmin()])
            raise AssertionError(f"row {row} cannot go from {state.name} to {to.name}")
        if self.num_parked:
            self.num_parked -= int(np.count_nonzero(states == _PARKED))
        if self.num_swapped:
            self.num_swapped -= int(np.count_nonzero(states == _SWAPPED))
        self.num_parked += len(rows) * (to == _PARKED)
        self.num_swapped += len(rows) * (to == _SWAPPED)
        self.state[rows], self.waits[rows] = to, to in _WAITS
        self.parked[rows] = to == _PARKED

    def _take_row(self) -> int:
        if not self._free_rows:
            self._make_rows(2 * self.size)
        row = self._free_rows.pop()
        self.clear(row)
        return row

    def _make_rows(self, size: int) -> None:
        old = self.size
        self.grow(size)
        self.visible: dict[str, Column] = {**self.by_name, **self._shown}  # to policies
        more = np.full((size - old, MAX_STOP_TOKEN_IDS), _NO_TOKEN, dtype=np.int32)
        self.stop_token_ids = np.concatenate((self.stop_token_ids, more))
        self._free_rows.extend(range(size - 1, old - 1, -1))
