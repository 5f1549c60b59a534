"""Publishing: blocks that a pass has filled become findable."""

from __future__ import annotations

import numpy as np

from cadenza.scheduler.columns import BoolColumn, all_true, where
from cadenza.scheduler.prefix import BlockKey, extend_keys
from cadenza.scheduler.prefix_index import Prefix
from cadenza.scheduler.stores import Stores
from cadenza.scheduler.table import Rows


class Publisher:
    """Offers full blocks to the prefix index, in the order of the plan that filled them."""

    def __init__(self, stores: Stores) -> None:
        self._stores = stores

    def publish(self, rows: Rows) -> None:
        """Offer the blocks that became full in the last pass to the prefix index."""
        if not self._stores.config.enable_prefix_caching:
            return
        table = self._stores.table
        full = table.computed_tokens[rows] // table.block_size
        more = where(full > table.published_blocks[rows])
        if not len(more):
            return
        rows, full = rows[more], full[more]
        done = self._publish_runs(rows, full)
        if not all_true(done):
            for row, upto in zip(rows[~done].tolist(), full[~done].tolist(), strict=True):
                self._publish_row(row, upto)

    def _publish_runs(self, rows: Rows, upto: Rows) -> BoolColumn:
        """Publish the rows' blocks up to `upto` at once.

        Returns for whom it was done: not where anything is in the way and has to be looked at.
        """
        table, pool = self._stores.table, self._stores.pool
        first = table.published_blocks[rows]
        counts = upto - first
        ends = counts.cumsum()
        starts = ends - counts
        heads = table.seat[rows] * table.block_table.shape[1] + first  # as if of one long table
        places = np.arange(ends[-1]) + (heads - starts).repeat(counts)
        blocks = table.block_table.reshape(-1).take(places, mode="clip").astype(np.intp)
        if pool.num_trusted(blocks) < len(blocks):
            return np.zeros(len(rows), dtype=bool)
        tokens = table.history_blocks.reshape(-1, table.block_size).take(places, 0, mode="clip")
        parents, names = table.prefix_block[rows], table.prefix_name[rows]

        def key_of(run: int) -> BlockKey:
            return self._key(rows.item(run), first.item(run))

        done = pool.index.publish_runs(parents, names, starts, tokens, blocks, key_of)
        if not all_true(done):
            rows, upto, ends = rows[done], upto[done], ends[done]
        tails = blocks[ends - 1]
        table.prefix_block[rows], table.prefix_name[rows] = tails, pool.index.names[tails]
        table.published_blocks[rows] = upto
        return done

    def _key(self, row: int, depth: int) -> BlockKey:
        table, cold = self._stores.table, self._stores.table.cold(row)
        key = cold.keys.find(depth)
        if key is None:
            ids, size = table.ids(row), table.block_size
            cold.keys = extend_keys(cold.keys, cold.salt, ids, size, depth + 1)
            key = cold.keys[depth]
        return key

    def _publish_row(self, row: int, upto: int) -> None:
        table, pool, size = self._stores.table, self._stores.pool, self._stores.config.block_size
        cold, first = table.cold(row), int(table.published_blocks[row])
        prefix = Prefix(int(table.prefix_block[row]), int(table.prefix_name[row]))
        if not pool.index.is_alive(prefix):
            # It continued another row's publication, which is gone; its own blocks take over
            prefix, first = pool.index.root(cold.salt), 0
        table.published_blocks[row] = upto
        ids, blocks = table.ids(row), table.blocks(row)
        trusted = pool.num_trusted(blocks[:upto])  # what was computed from distrusted ones is too
        if trusted <= first:
            return
        cold.keys = extend_keys(cold.keys, cold.salt, ids, size, trusted)
        end = pool.publish(
            prefix,
            cold.keys.behind(first),
            ids[first * size : trusted * size].reshape(-1, size),
            blocks[first:trusted].tolist(),
        )
        table.prefix_block[row], table.prefix_name[row] = end
