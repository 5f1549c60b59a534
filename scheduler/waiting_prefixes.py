"""The cached prefix of every waiting row, kept current as blocks are published and evicted.

An inverted index: from the key of the block that a row lacks first, and from the last block that it
found, to the row. A step then costs nothing for rows whose prefix stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from cadenza.scheduler.prefix import BlockKey, extend_keys
from cadenza.scheduler.prefix_index import Blocks, PrefixIndex
from cadenza.scheduler.table import RequestTable

Key = TypeVar("Key", int, BlockKey)

_NO_KEY = 0


class WaitingPrefixes:
    """Writes the columns `cached_tokens` and `next_block_key` of the rows given to it."""

    def __init__(self, table: RequestTable, index: PrefixIndex) -> None:
        self._table = table
        self._index = index
        self._found: dict[int, Blocks] = {}  # row -> the blocks of its cached prefix
        self._ending: dict[int, dict[int, None]] = {}  # block -> rows whose prefix ends there
        self._wanted: dict[BlockKey, dict[int, None]] = {}  # key -> rows that lack it first
        self._passing = np.zeros(len(index.names), dtype=np.int64)  # rows through each block
        index.watcher = self

    def __contains__(self, row: int) -> bool:
        return row in self._found

    def add(self, row: int) -> None:
        """Follow a waiting row; its keys are hashed now, so that no step has to."""
        cold = self._table.cold(row)
        extend_keys(cold.keys, cold.salt, cold.tokens, self._table.block_size, self._most(row))
        self._follow(row, self._match(row, np.empty(0, dtype=np.int32)))

    def remove(self, row: int) -> None:
        """Follow the row no longer, if it was followed."""
        if row in self._found:
            self._leave(row)
            self._table.cached_tokens[row] = 0
            self._table.next_block_key[row] = _NO_KEY

    def found(self, row: int) -> Blocks:
        """The blocks of the row's cached prefix; not pinned."""
        return self._found[row]

    def on_published(self, keys: Sequence[BlockKey]) -> None:
        """Rows that lacked one of these find it, and perhaps more behind it."""
        if not self._wanted:
            return
        for key in [key for key in keys if key in self._wanted]:
            for row in list(self._wanted.get(key, ())):
                found = self._match(row, self._found[row])
                if len(found) > len(self._found[row]):
                    self._leave(row)
                    self._follow(row, found)

    def on_unpublished(self, blocks: Blocks) -> None:
        """Rows whose prefix went through one of the blocks fall back to what comes before it."""
        for block in blocks[self._passing[blocks] > 0].tolist():
            for row in self._rows_through(block):
                found = self._leave(row)
                self._follow(row, found[: int((found == block).argmax())])

    def _rows_through(self, block: int) -> list[int]:
        """Blocks age from their rows' ends, so that mostly the prefix ends with the block."""
        rows = list(self._ending.get(block, ()))
        if len(rows) < self._passing[block]:
            rows = [row for row, found in self._found.items() if (found == block).any()]
        return rows

    def _most(self, row: int) -> int:
        """Blocks that a match may use at most: one token is always left to compute."""
        return (int(self._table.num_tokens[row]) - 1) // self._table.block_size

    def _match(self, row: int, found: Blocks) -> Blocks:
        """`found`, and what continues it now."""
        cold, most, size = self._table.cold(row), self._most(row), self._table.block_size
        known = len(found)
        prefix = self._index.end(self._index.root(cold.salt), found)
        tokens = cold.tokens[known * size : most * size].reshape(-1, size)
        more = self._index.match(prefix, cold.keys[known:most], tokens)
        return np.concatenate((found, more)) if known else more

    def _follow(self, row: int, found: Blocks) -> None:
        self._found[row] = found
        self._table.cached_tokens[row] = len(found) * self._table.block_size
        if len(found):
            self._passing[found] += 1
            self._ending.setdefault(int(found[-1]), {})[row] = None
        if len(found) < self._most(row):
            key = self._table.cold(row).keys[len(found)]
            self._wanted.setdefault(key, {})[row] = None
            self._table.next_block_key[row] = int.from_bytes(key[:8], "little", signed=True)
        else:
            self._table.next_block_key[row] = _NO_KEY

    def _leave(self, row: int) -> Blocks:
        found = self._found.pop(row)
        if len(found):
            self._passing[found] -= 1
            _discard(self._ending, int(found[-1]), row)
        if len(found) < self._most(row):
            _discard(self._wanted, self._table.cold(row).keys[len(found)], row)
        return found

    def check(self) -> None:
        """Match every followed row anew; raises AssertionError where a column is stale."""
        for row, found in self._found.items():
            anew = self._match(row, np.empty(0, dtype=np.int32))
            assert np.array_equal(anew, found), f"row {row} has another cached prefix than it says"
            assert self._table.cached_tokens[row] == len(found) * self._table.block_size


def _discard(rows_by: dict[Key, dict[int, None]], key: Key, row: int) -> None:
    rows = rows_by[key]
    del rows[row]
    if not rows:
        del rows_by[key]
