"""Publishing: blocks that a pass has filled become findable."""

from __future__ import annotations

import numpy as np

from cadenza.scheduler.prefix import BlockKey, block_key, extend_keys, root_key
from cadenza.scheduler.prefix_index import Prefix, Tokens
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
        more = np.flatnonzero(full > table.published_blocks[rows])
        if not len(more):
            return
        rows, full = rows[more], full[more]
        if not self._publish_all(rows, full):
            for row, upto in zip(rows.tolist(), full.tolist(), strict=True):
                self._publish_row(row, upto)

    def _publish_all(self, rows: Rows, upto: Rows) -> bool:
        """Publish every row's blocks up to `upto` at once.

        Returns whether it was done: not if anything is in the way and rows have to be looked at.
        """
        table, index = self._stores.table, self._stores.pool.index
        size = table.block_size
        ends, names = table.prefix_block[rows], table.prefix_name[rows]
        if not ((index.names[ends] == names) | (ends < 0)).all():
            return False
        first = table.published_blocks[rows]
        counts = upto - first
        seats, last = np.repeat(table.seat[rows], counts), np.cumsum(counts) - 1
        depths = np.arange(len(seats)) + np.repeat(upto - 1 - last, counts)
        tokens = table.history[seats[:, None], depths[:, None] * size + np.arange(size)]
        blocks = table.block_table[seats, depths]
        if self._stores.pool.num_trusted(blocks) < len(blocks):
            return False
        keys = self._hash(rows, first, upto, tokens)
        if not index.publish_runs(names, last - counts + 1, keys, tokens, blocks):
            return False
        ends = blocks[last]
        table.prefix_block[rows], table.prefix_name[rows] = ends, index.names[ends]
        table.published_blocks[rows] = upto
        return True

    def _hash(self, rows: Rows, first: Rows, upto: Rows, tokens: Tokens) -> list[BlockKey]:
        """Keys of the blocks `first` to `upto` of each row; `tokens` [blocks, block_size]."""
        raw, size = tokens.astype("<i4").tobytes(), 4 * tokens.shape[1]
        hashed: list[BlockKey] = []
        start = 0
        for row, begin, end in zip(rows.tolist(), first.tolist(), upto.tolist(), strict=True):
            cold = self._stores.table.cold(row)
            keys = cold.keys
            for depth in range(len(keys), end):
                parent = keys[-1] if keys else root_key(cold.salt)
                at = start + (depth - begin) * size
                keys.append(block_key(parent, raw[at : at + size]))
            hashed += keys[begin:end]
            start += (end - begin) * size
        return hashed

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
        extend_keys(cold.keys, cold.salt, ids, size, trusted)
        end = pool.publish(
            prefix,
            cold.keys[first:trusted],
            ids[first * size : trusted * size].reshape(-1, size),
            blocks[first:trusted].tolist(),
        )
        table.prefix_block[row], table.prefix_name[row] = end
