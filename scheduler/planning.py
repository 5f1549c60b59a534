"""One step's budget while it is being spent."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from cadenza.scheduler.columns import IntColumn
from cadenza.scheduler.plan import NO_COPIES, Copies
from cadenza.scheduler.prefills import Counts, Prefills
from cadenza.scheduler.table import Rows


class CopyList:
    """Block copies of one step, as they are decided."""

    def __init__(self) -> None:
        self.swap_out: list[tuple[int, int]] = []
        self.on_write: list[tuple[int, int]] = []
        self.swap_in: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self.swap_out) + len(self.on_write) + len(self.swap_in)

    def freeze(self) -> Copies:
        if not len(self):
            return NO_COPIES
        return Copies(*(_pairs(kind) for kind in (self.swap_out, self.on_write, self.swap_in)))


def _pairs(copies: list[tuple[int, int]]) -> npt.NDArray[np.int32]:
    return np.array(copies, dtype=np.int32).reshape(-1, 2)


class PlanBuilder:
    """Collects the rows and copies of one step and keeps count of its token budget.

    Decoding rows take one token each. Prefilling rows share what is left when the plan is
    assembled, on equal terms with rows admitted late in the step. A row enters while a block's
    worth of tokens, or all it wants if that is less, would be left for each; those that want more
    count for half of the tokens at most, so that short prompts enter beside any number of long
    ones. A row never wants more than `prefill_chunk` tokens of the step.
    """

    def __init__(
        self,
        *,
        step_id: int,
        now_s: float,
        token_budget: int,
        block_size: int,
        prefill_chunk: int | None = None,
    ) -> None:
        self.step_id = step_id
        self.now_s = now_s
        self.token_budget = token_budget
        self.copies = CopyList()
        self.seated: list[int] = []  # rows that got a seat in this step
        self.unseated: list[int] = []  # rows that lost theirs
        self.admitted: list[int] = []  # requests
        self.cached: list[int] = []  # tokens that each admitted request need not compute
        self.preempted: list[int] = []  # requests
        self.decodes: Rows = np.empty(0, dtype=np.intp)
        self._block_size = block_size
        self._chunk = prefill_chunk or token_budget
        self._remaining: dict[int, int] = {}  # prefilling row -> tokens it has to compute
        self._unpromised = token_budget  # of what decodes leave
        self._promised_to_long = 0

    @property
    def tokens_left(self) -> int:
        """Tokens that prefilling rows may share."""
        return self.token_budget - len(self.decodes)

    @property
    def is_empty(self) -> bool:
        return not (len(self.decodes) or self._remaining)

    @property
    def is_full(self) -> bool:
        """Whether not even a row of one token has room."""
        return self._unpromised <= 0

    def has_room_for(self, remaining: int) -> bool:
        """Whether one more row with `remaining` tokens to compute may prefill."""
        remaining = min(remaining, self._chunk)
        if min(remaining, self._block_size) > self._unpromised:
            return self.is_empty  # of so small a budget it has all
        if remaining <= self._block_size or not self._promised_to_long:
            return True
        return self._promised_to_long + self._block_size <= self.tokens_left // 2

    def num_with_room(self, remaining: Sequence[int]) -> int:
        """How many of these `has_room_for` lets in, one after another, beside others."""
        size, unpromised, to_long = self._block_size, self._unpromised, self._promised_to_long
        most_to_long = self.tokens_left // 2
        for num, count in enumerate(self._in_chunks(remaining)):
            unpromised -= count if count < size else size
            if unpromised < 0:
                return num
            if count > size:
                if to_long and to_long + size > most_to_long:
                    return num
                to_long += size
        return len(remaining)

    def place_running(self, decodes: Rows, prefills: Rows, remaining: Counts) -> None:
        """Place the running rows; `remaining` tokens to compute for each of `prefills`."""
        self._unpromised += len(self.decodes) - len(decodes)
        self.decodes = decodes
        for row, count in zip(prefills.tolist(), remaining.tolist(), strict=True):
            self._place(row, count)

    def place_admitted(self, row: int, choices: Sequence[int], cached: int, remaining: int) -> None:
        """Place a row that has just got its seats."""
        self._place(row, remaining)
        self.seated.append(row)
        self.admitted += choices
        self.cached += [cached] * len(choices)

    def place_all_admitted(
        self, rows: list[int], requests: list[int], cached: list[int], remaining: list[int]
    ) -> None:
        """Place rows of one choice each that have just got their seats."""
        counts, size = self._in_chunks(remaining), self._block_size
        self._remaining.update(zip(rows, remaining, strict=True))
        self._unpromised -= sum([count if count < size else size for count in counts])
        self._promised_to_long += size * sum([count > size for count in counts])
        self.seated += rows
        self.admitted += requests
        self.cached += cached

    def withdraw(self, row: int) -> None:
        """Take a row out again, and give its tokens back, if it was placed."""
        if row in self._remaining:
            self._promise(self._remaining.pop(row), -1)
        else:
            self._unpromised += len(self.decodes)
            self.decodes = self.decodes[self.decodes != row]
            self._unpromised -= len(self.decodes)

    def _in_chunks(self, remaining: Sequence[int]) -> list[int]:
        """What each may compute in this step, at most."""
        chunk = self._chunk
        return [count if count < chunk else chunk for count in remaining]

    def _place(self, row: int, remaining: int) -> None:
        self._remaining[row] = remaining
        self._promise(remaining, 1)

    def _promise(self, remaining: int, sign: int) -> None:
        size, remaining = self._block_size, min(remaining, self._chunk)
        self._unpromised -= sign * min(remaining, size)
        if remaining > size:
            self._promised_to_long += sign * size

    def rows_and_counts(self, prefills: Prefills, admission: IntColumn) -> tuple[Rows, Counts]:
        """Placed rows, decodes first, and the tokens each computes; at least one each.

        Args:
            prefills: says what each prompt gets; one whose turn comes later is not in the step.
            admission: by row.
        """
        counts = np.ones(len(self.decodes), dtype=np.int64)
        if not self._remaining:
            prefills.clear()
            return self.decodes, counts
        rows = np.fromiter(self._remaining, dtype=np.intp, count=len(self._remaining))
        remaining = np.fromiter(self._remaining.values(), dtype=np.int64, count=len(rows))
        left = max(0, self.tokens_left)
        shares = prefills.split(admission[rows], remaining, left, self._chunk)
        in_step = shares > 0
        return (
            np.concatenate((self.decodes, rows[in_step])),
            np.concatenate((counts, shares[in_step])),
        )
