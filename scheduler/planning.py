"""One step's budget while it is being spent, and how prefills share it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cadenza.scheduler.table import Rows

Counts = npt.NDArray[np.int64]


def fair_shares(wanted: Counts, budget: int) -> Counts:
    """Split `budget` tokens so that nobody gets more than wanted and nobody could get more fairly.

    Max-min fairness by water-filling: who wants less than an equal share gets all of it, the rest
    share what is left. What does not divide goes to the first in order.
    """
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


class PlanBuilder:
    """Collects the rows of one step and keeps count of its token budget.

    Decoding rows take one token each. Prefilling rows share what is left when the plan is
    assembled, so that rows admitted late in the step share on equal terms. Each is promised a
    block's worth of tokens, or all it wants if that is less; those that want more may take half of
    what is left by such promises, so that short prompts find room beside any number of long ones.
    """

    def __init__(self, *, step_id: int, token_budget: int, block_size: int) -> None:
        self.step_id = step_id
        self.token_budget = token_budget
        self._block_size = block_size
        self._promised = self._promised_to_long = 0
        self.decodes: Rows = np.empty(0, dtype=np.intp)
        self._prefills: list[int] = []
        self.admitted: list[int] = []
        self.cached: list[int] = []  # tokens each admitted row need not compute
        self.preempted: list[int] = []

    @property
    def tokens_left(self) -> int:
        """Tokens that prefilling rows may share."""
        return self.token_budget - len(self.decodes)

    @property
    def is_empty(self) -> bool:
        return not (len(self.decodes) or self._prefills)

    @property
    def is_full(self) -> bool:
        """Whether not even a row of one token has room."""
        return self._promised >= self.tokens_left

    def has_room_for(self, remaining: int) -> bool:
        """Whether one more row with `remaining` tokens to compute may prefill."""
        if self._promised + min(remaining, self._block_size) > self.tokens_left:
            return False
        if remaining <= self._block_size or not self._promised_to_long:
            return True
        return self._promised_to_long + self._block_size <= self.tokens_left // 2

    def place_running(self, decodes: Rows, prefills: Rows, remaining: Counts) -> None:
        """Place the running rows; `remaining` tokens to compute for each of `prefills`."""
        self.decodes = decodes
        self._prefills = prefills.tolist()
        for count in remaining.tolist():
            self._promise(count)

    def place_admitted(self, row: int, cached: int, remaining: int) -> None:
        """Place a row that has just got its seat."""
        self._prefills.append(row)
        self.admitted.append(row)
        self.cached.append(cached)
        self._promise(remaining)

    def _promise(self, remaining: int) -> None:
        self._promised += min(remaining, self._block_size)
        self._promised_to_long += self._block_size if remaining > self._block_size else 0

    def rows_and_counts(self, remaining: npt.NDArray[np.int64]) -> tuple[Rows, Counts]:
        """All placed rows, decodes first, and the tokens each computes.

        `remaining` is a whole column: tokens known but not computed, by row.
        """
        prefills = np.array(self._prefills, dtype=np.intp)
        shares = fair_shares(remaining[prefills], self.tokens_left)
        ones = np.ones(len(self.decodes), dtype=np.int64)
        return np.concatenate((self.decodes, prefills)), np.concatenate((ones, shares))
