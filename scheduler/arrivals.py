"""Who has come since the last step, and what policies learn of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cadenza.policies.views import RequestColumns
from cadenza.scheduler.stores import Stores
from cadenza.scheduler.table import Rows


class Arrivals:
    """Rows that are new to the policies. One instance a scheduler.

    They are all still here when the next step begins, since rows leave in its reap.
    """

    def __init__(self, stores: Stores) -> None:
        self._stores = stores
        self._new: list[int] = []
        self._former: list[int] | None = None  # here already when other policies came
        self._are_resumed = False  # those, for everybody and for good

    def add(self, row: int) -> None:
        """A row that has just come."""
        self._new.append(row)

    def introduce(self, *, takes_over: bool) -> None:
        """Policies have come who have not seen those that are here.

        Unless they take over, they alone are told of those as resumed.
        """
        self._are_resumed |= takes_over and bool(self._stores.decisions.newcomers)
        rows = np.fromiter(self._stores.table, dtype=np.intp, count=-1)
        self._former = rows[np.argsort(self._stores.table.arrival[rows])].tolist()

    def tell(self, now_s: float) -> None:
        """Tell policies of the new rows, which are new no more."""
        decisions = self._stores.decisions
        if decisions.predicts_lengths:
            self._predict(now_s)
        if self._former is not None:
            self._introduce(self._former, now_s)
        elif self._new and decisions.observes("on_arrived"):
            decisions.on_arrived(self._view(self._new), self._stores.view(now_s))
        self._new, self._former, self._are_resumed = [], None, False

    def _predict(self, now_s: float) -> None:
        """Let a policy say how long outputs become, of those for whom nobody has said it."""
        stores, table = self._stores, self._stores.table
        rows = _rows(self._new)
        if self._former is not None and stores.decisions.predicts_anew:
            rows = np.unique(_rows([*self._former, *self._new]))
        rows = rows[table.predicted_tokens[rows] == 0]
        if len(rows):
            lengths = stores.decisions.predict_lengths(table.view(rows), stores.view(now_s))
            most = table.max_tokens[rows]
            table.predicted_tokens[rows] = np.ceil(np.minimum(lengths, most)).astype(np.int64)

    def _introduce(self, former: Sequence[int], now_s: float) -> None:
        stores, table = self._stores, self._stores.table
        resumed = table.resumed.copy()
        resumed[former] = True
        if self._are_resumed:
            table.resumed[:] = resumed
        known = {*former}
        everybody = _rows([*former, *(row for row in self._new if row not in known)])
        columns = {**table.visible, "resumed": resumed}
        stores.decisions.introduce(
            RequestColumns(columns, everybody), self._view(self._new), stores.view(now_s)
        )

    def _view(self, rows: Sequence[int]) -> RequestColumns:
        return self._stores.table.view(_rows(rows))


def _rows(rows: Sequence[int]) -> Rows:
    return np.array(rows, dtype=np.intp)
