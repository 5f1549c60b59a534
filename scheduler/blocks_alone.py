"""A column that is not kept: how many blocks each row holds that nobody else holds."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from cadenza.scheduler.blocks import BlockPool
from cadenza.scheduler.columns import IntColumn
from cadenza.scheduler.table import RequestTable, Rows


class BlocksAlone:
    """Counts when it is read: all blocks of the rows that are looked at, once a view."""

    dtype: npt.DTypeLike = np.dtype(np.int64)

    def __init__(self, table: RequestTable, pool: BlockPool) -> None:
        self._table = table
        self._pool = pool

    def take(self, rows: Rows, /, *, mode: Literal["clip"] = "clip") -> IntColumn:
        """int64 [rows]; 0 for rows without a seat."""
        table, held = self._table, self._table.blocks_held[rows]
        places = np.arange(int(held.max(initial=0)))
        blocks = table.block_table[table.seat[rows], : len(places)]  # [rows, places]
        counted = (self._pool.references[blocks] == 1) & (places < held[:, None])
        alone: IntColumn = counted.sum(axis=1, dtype=np.int64)
        return alone
