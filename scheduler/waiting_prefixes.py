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
from cadenza.scheduler.table import RequestTable, Rows

Key = TypeVar("Key", int, BlockKey)

_NONE = 0  # no cached token, and no key
_NOTHING: Blocks = np.empty(0, dtype=np.intp)


class WaitingPrefixes:
    """Writes the columns `cached_tokens` and `next_block_key` of the rows given to it."""

    def __init__(self, table: RequestTable, index: PrefixIndex) -> None:
        self._table = table
        self._index = index
        self._found: dict[int, Blocks] = {}  # row -> the blocks of its cached prefix
        self._ending: dict[int, dict[int, None]] = {}  # block -> rows whose prefix ends there
        self._lacks: dict[int, BlockKey] = {}  # row -> the key of the block that it lacks first
        self._wanted: dict[BlockKey, dict[int, None]] = {}  # the other way round
        self._passing = np.zeros(len(index.names), dtype=np.int64)  # rows through each block
        self._gone = np.zeros(len(index.names), dtype=bool)  # all False between calls
        index.watcher = self

    def __contains__(self, row: int) -> bool:
        return row in self._found

    def add(self, row: int) -> None:
        """Follow a waiting row; its keys are hashed now, so that no step has to."""
        cold = self._table.cold(row)
        size, most = self._table.block_size, self._most(row)
        cold.keys = extend_keys(cold.keys, cold.salt, cold.tokens, size, most)
        self._found[row] = _NOTHING
        found = self._continuation(row)
        self._set_end(row, found)
        self._passing[found] += 1

    def remove(self, rows: Rows) -> None:
        """Follow these rows no longer, as far as they were followed."""
        known = self._found
        for row in rows.tolist():
            if row in known:
                found = known.pop(row)
                self._forget_end(row, found)
                if len(found):
                    self._passing[found] -= 1
        self._table.cached_tokens[rows] = self._table.next_block_key[rows] = _NONE

    def found(self, row: int) -> Blocks:
        """The blocks of the row's cached prefix, not pinned; none if it is not followed."""
        return self._found.get(row, _NOTHING)

    def on_published(self, keys: Sequence[BlockKey]) -> None:
        """Rows that lacked one of these find it, and perhaps more behind it."""
        if not self._wanted:
            return
        for key in [key for key in keys if key in self._wanted]:
            for row in list(self._wanted.get(key, ())):
                more = self._continuation(row)
                if len(more):
                    self._move_end(row, np.concatenate((self._found[row], more)))
                    self._passing[more] += 1

    def on_unpublished(self, blocks: Blocks) -> None:
        """Rows whose prefix went through one of the blocks fall back to what comes before it."""
        if not self._ending:
            return
        gone = blocks[self._passing[blocks] > 0]
        if not len(gone):
            return
        self._gone[gone] = True
        # Blocks age from their rows' ends, so that mostly the prefixes end with what is evicted
        ending = [row for block in gone.tolist() for row in self._ending.get(block, ())]
        self._cut(ending)
        if self._passing[gone].any():
            self._cut([row for row, found in self._found.items() if self._gone[found].any()])
        self._gone[gone] = False

    def _cut(self, rows: list[int]) -> None:
        """Shorten the prefixes of these rows to what comes before the first block that is gone."""
        for row in rows:
            found = self._found[row]
            kept = int(self._gone[found].argmax())
            self._passing[found[kept:]] -= 1
            self._move_end(row, found[:kept])

    def _most(self, row: int) -> int:
        """Blocks that a match may use at most: one token is always left to compute."""
        return (int(self._table.num_tokens[row]) - 1) // self._table.block_size

    def _continuation(self, row: int) -> Blocks:
        """The blocks that continue what the row has found, as far as there are any now."""
        cold, most, size = self._table.cold(row), self._most(row), self._table.block_size
        found = self._found[row]
        known = len(found)
        prefix = self._index.end(self._index.root(cold.salt), found)
        tokens = cold.tokens[known * size : most * size].reshape(-1, size)
        return self._index.match(prefix, cold.keys.behind(known), tokens)

    def _move_end(self, row: int, found: Blocks) -> None:
        """Let the prefix of a followed row be `found`; the caller counts who passes a block."""
        self._forget_end(row, self._found[row])
        self._set_end(row, found)

    def _set_end(self, row: int, found: Blocks) -> None:
        self._found[row] = found
        self._table.cached_tokens[row] = len(found) * self._table.block_size
        if len(found):
            self._ending.setdefault(int(found[-1]), {})[row] = None
        if len(found) < self._most(row):
            key = self._lacks[row] = self._table.cold(row).keys[len(found)]
            self._wanted.setdefault(key, {})[row] = None
            if len(found):
                self._index.awaited[found[-1]] += 1
            self._table.next_block_key[row] = int.from_bytes(key[:8], "little", signed=True)
        else:
            self._table.next_block_key[row] = _NONE

    def _forget_end(self, row: int, found: Blocks) -> None:
        key = self._lacks.pop(row, None)
        if key is not None:
            _discard(self._wanted, key, row)
        if len(found):
            end = int(found[-1])
            _discard(self._ending, end, row)
            self._index.awaited[end] -= key is not None

    def check(self) -> None:
        """Match every followed row anew; raises AssertionError where anything is stale."""
        passing, awaited = np.zeros_like(self._passing), np.zeros_like(self._index.awaited)
        wanted: dict[BlockKey, set[int]] = {}
        ending: dict[int, set[int]] = {}
        for row, found in list(self._found.items()):
            self._found[row] = _NOTHING
            anew = self._continuation(row)
            self._found[row] = found
            assert np.array_equal(anew, found), f"row {row} has another cached prefix than it says"
            assert self._table.cached_tokens[row] == len(found) * self._table.block_size
            passing[found] += 1
            if len(found):
                ending.setdefault(int(found[-1]), set()).add(row)
            if len(found) < self._most(row):
                wanted.setdefault(self._table.cold(row).keys[len(found)], set()).add(row)
                awaited[found[-1:]] += 1
        assert np.array_equal(passing, self._passing), "the rows through a block are miscounted"
        assert np.array_equal(awaited, self._index.awaited), "who waits for more is miscounted"
        assert {key: set(rows) for key, rows in self._wanted.items()} == wanted
        assert {block: set(rows) for block, rows in self._ending.items()} == ending
        assert not self._gone.any()


def _discard(rows_by: dict[Key, dict[int, None]], key: Key, row: int) -> None:
    rows = rows_by[key]
    del rows[row]
    if not rows:
        del rows_by[key]
