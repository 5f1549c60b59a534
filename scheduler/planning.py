"""One step's budget while it is being spent, and how prefills share it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from cadenza.scheduler.plan import NO_COPIES, Copies
from cadenza.scheduler.table import Rows

Counts = npt.NDArray[np.int64]


def fair_shares(wanted: Counts, budget: int) -> Counts:
    """Split `budget` tokens so that nobody gets more than wanted and nobody could get more fairly.

    Max-min fairness by water-filling: who wants less than an equal share gets all of it, the rest
    share what is left. What does not divide goes to the first in order.
    """
    if wanted.sum() <= budget:
        return wanted.copy()
    shares = np.zeros_like(wanted)
    left = budget
    order = np.argsort(wanted, kind="stable")
    for rank, index in enumerate(order):
        equal = left // (len(order) - rank)
        if wanted[index] > equal:
            rest = np.sort(order[rank:])
            shares[rest] = equal
            shares[rest[: left - equal * len(rest)]] += 1
            break
        shares[index] = wanted[index]
        left -= int(wanted[index])
    return shares


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
    assembled, so that rows admitted late in the step share on equal terms. Each is promised a
    block's worth of tokens, or all it wants if that is less; those that want more may take half of
    what is left by such promises, so that short prompts find room beside any number of long ones.
    A row never wants more than `prefill_chunk` tokens of the step.
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
        self._wanted: dict[int, int] = {}  # prefilling row -> tokens it has to compute, of a chunk
        self._unpromised = token_budget  # of what decodes leave
        self._promised_to_long = 0

    @property
    def tokens_left(self) -> int:
        """Tokens that prefilling rows may share."""
        return self.token_budget - len(self.decodes)

    @property
    def is_empty(self) -> bool:
        return not (len(self.decodes) or self._wanted)

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
        self._wanted.update(zip(rows, counts, strict=True))
        self._unpromised -= sum([count if count < size else size for count in counts])
        self._promised_to_long += size * sum([count > size for count in counts])
        self.seated += rows
        self.admitted += requests
        self.cached += cached

    def withdraw(self, row: int) -> None:
        """Take a row out again, and give its tokens back, if it was placed."""
        if row in self._wanted:
            self._promise(self._wanted.pop(row), -1)
        else:
            self._unpromised += len(self.decodes)
            self.decodes = self.decodes[self.decodes != row]
            self._unpromised -= len(self.decodes)

    def _in_chunks(self, remaining: Sequence[int]) -> list[int]:
        """What each may compute in this step, at most."""
        chunk = self._chunk
        return [count if count < chunk else chunk for count in remaining]

    def _place(self, row: int, remaining: int) -> None:
        self._wanted[row] = remaining = min(remaining, self._chunk)
        self._promise(remaining, 1)

    def _promise(self, remaining: int, sign: int) -> None:
        size = self._block_size
        self._unpromised -= sign * min(remaining, size)
        if remaining > size:
            self._promised_to_long += sign * size

    def rows_and_counts(self) -> tuple[Rows, Counts]:
        """Placed rows, decodes first, and the tokens each computes; at least one each.

        Prefills that get none, as a policy may have left them too few, are not in the step.
        """
        prefills = np.fromiter(self._wanted, dtype=np.intp, count=len(self._wanted))
        wanted = np.fromiter(self._wanted.values(), dtype=np.int64, count=len(self._wanted))
        shares = fair_shares(wanted, max(0, self.tokens_left))
        if self.tokens_left < len(prefills):
            prefills, shares = prefills[shares > 0], shares[shares > 0]
        ones = np.ones(len(self.decodes), dtype=np.int64)
        return np.concatenate((self.decodes, prefills)), np.concatenate((ones, shares))
