"""Who has come since the last step, and what policies learn of them."""

from __future__ import annotations

import numpy as np

from cadenza.scheduler.stores import Stores


class Arrivals:
    """Rows that are new to the policies. One instance a scheduler.

    They are all still here when the next step begins, since rows leave in its reap.
    """

    def __init__(self, stores: Stores) -> None:
        self._stores = stores
        self._new: list[int] = []

    def add(self, row: int) -> None:
        """A row that has just come."""
        self._new.append(row)

    def add_everybody(self) -> None:
        """All that are here, in order of arrival, for policies that have not seen them come."""
        table = self._stores.table
        rows = np.fromiter(table, dtype=np.intp, count=-1)
        rows = rows[np.argsort(table.arrival[rows])]
        table.resumed[rows] = True
        self._new = rows.tolist()

    def tell(self, now_s: float) -> None:
        """Tell policies of the new rows, which are new no more."""
        if not self._new:
            return
        stores = self._stores
        if stores.decisions.observes("on_arrived"):
            rows = np.array(self._new, dtype=np.intp)
            stores.decisions.on_arrived(stores.table.view(rows), stores.view(now_s))
        self._new = []
