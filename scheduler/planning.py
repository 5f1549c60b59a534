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
    assembled, so that rows admitted late in the step share on equal terms.
    """

    def __init__(self, *, step_id: int, token_budget: int) -> None:
        self.step_id = step_id
        self.token_budget = token_budget
        self.deficit = 0  # blocks that the running rows lack
        self.decodes: Rows = np.empty(0, dtype=np.intp)
        self._prefills: list[int] = []
        self.admitted: list[int] = []
        self.cached: list[int] = []  # prompt tokens each admitted row need not compute
        self.preempted: list[int] = []

    @property
    def tokens_left(self) -> int:
        """Tokens that prefilling rows may share."""
        return self.token_budget - len(self.decodes)

    @property
    def is_empty(self) -> bool:
        return not (len(self.decodes) or self._prefills)

    def room_for_prefill(self, least: int) -> bool:
        """Whether one more prefilling row would leave each of them at least `least` tokens."""
        return self.tokens_left // (len(self._prefills) + 1) >= least

    def place_running(self, decodes: Rows, prefills: Rows) -> None:
        self.decodes = decodes
        self._prefills = prefills.tolist()

    def place_admitted(self, row: int, cached: int) -> None:
        self._prefills.append(row)
        self.admitted.append(row)
        self.cached.append(cached)

    def rows_and_counts(self, remaining: npt.NDArray[np.int64]) -> tuple[Rows, Counts]:
        """All placed rows, decodes first, and the tokens each computes. Rows with none are out.

        `remaining` is a whole column: tokens known but not computed, by row.
        """
        prefills = np.array(self._prefills, dtype=np.intp)
        shares = fair_shares(remaining[prefills], self.tokens_left)
        rows = np.concatenate((self.decodes, prefills[shares > 0]))
        ones = np.ones(len(self.decodes), dtype=np.int64)
        return rows, np.concatenate((ones, shares[shares > 0]))
