"""The cached prefix of every waiting row, kept current as blocks are published and evicted.

An inverted index: from a node to the rows whose cached prefix ends there, and from the key of the
block that a row lacks first to the row. A step then costs nothing for rows whose prefix stays.
"""

from __future__ import annotations

from cadenza.scheduler.prefix import extend_keys
from cadenza.scheduler.prefix_index import Node, PrefixIndex
from cadenza.scheduler.table import RequestTable

_NO_KEY = 0


class WaitingPrefixes:
    """Writes the columns `cached_tokens` and `next_block_key` of the rows given to it."""

    def __init__(self, table: RequestTable, index: PrefixIndex) -> None:
        self._table = table
        self._index = index
        self._ends: dict[int, Node] = {}  # row -> last node of its cached prefix
        self._wanted = index.wanted
        index.watcher = self

    def __contains__(self, row: int) -> bool:
        return row in self._ends

    def add(self, row: int) -> None:
        """Follow a waiting row; its keys are hashed now, so that no step has to."""
        cold = self._table.cold(row)
        extend_keys(cold.keys, cold.salt, cold.tokens, self._table.block_size, self._most(row))
        self._advance(row, self._index.root(cold.salt))

    def remove(self, row: int) -> None:
        """Follow the row no longer, if it was followed."""
        if row in self._ends:
            self._leave(row)
            self._table.cached_tokens[row] = 0
            self._table.next_block_key[row] = _NO_KEY

    def end(self, row: int) -> Node:
        """The last node of the row's cached prefix; the root of its salt if it has none."""
        return self._ends[row]

    def on_published(self, node: Node) -> None:
        for row in list(self._wanted.get(node.key, ())):
            end = self._leave(row)
            self._advance(row, end)

    def on_evicted(self, node: Node) -> None:
        """Rows whose prefix went through the node fall back to what comes before it."""
        if not self._ends:
            return
        assert node.parent is not None
        below = [node]
        while below:
            each = below.pop()
            for row in list(each.waiting or ()):
                self._leave(row)
                self._stop(row, node.parent)
            below.extend(each.children())

    def _most(self, row: int) -> int:
        """Blocks that a match may use at most: one token is always left to compute."""
        return (int(self._table.num_tokens[row]) - 1) // self._table.block_size

    def _advance(self, row: int, node: Node) -> None:
        cold, most = self._table.cold(row), self._most(row)
        while node.depth < most:
            tokens = cold.block_bytes(node.depth, self._table.block_size)
            child = self._index.child(node, cold.keys[node.depth], tokens)
            if child is None or child.block is None:
                break
            node = child
        self._stop(row, node)

    def _stop(self, row: int, node: Node) -> None:
        self._ends[row] = node
        if node.waiting is None:
            node.waiting = {}
        node.waiting[row] = None
        self._table.cached_tokens[row] = node.depth * self._table.block_size
        if node.depth < self._most(row):
            key = self._table.cold(row).keys[node.depth]
            self._wanted.setdefault(key, {})[row] = None
            self._table.next_block_key[row] = int.from_bytes(key[:8], "little", signed=True)
        else:
            self._table.next_block_key[row] = _NO_KEY

    def _leave(self, row: int) -> Node:
        node = self._ends.pop(row)
        assert node.waiting is not None
        del node.waiting[row]
        if node.depth < self._most(row):
            key = self._table.cold(row).keys[node.depth]
            rows = self._wanted[key]
            del rows[row]
            if not rows:
                del self._wanted[key]
        return node

    def check(self) -> None:
        """Match every followed row anew; raises AssertionError where a column is stale."""
        for row, end in self._ends.items():
            cold, node = self._table.cold(row), self._index.root(self._table.cold(row).salt)
            for depth in range(self._most(row)):
                tokens = cold.block_bytes(depth, self._table.block_size)
                child = self._index.child(node, cold.keys[depth], tokens)
                if child is None or child.block is None:
                    break
                node = child
            assert end is node, f"row {row} has another cached prefix than its column says"
            assert self._table.cached_tokens[row] == node.depth * self._table.block_size
