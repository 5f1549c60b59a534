"""The KV block pool: who holds which block, and which unheld blocks are still worth finding.

A block is in exactly one of three places: on the free list, unheld but cached (findable by its
key, oldest release evicted first), or held by `references` tables. The pool knows nothing of rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cadenza.scheduler.prefix import BlockKey

Blocks = npt.NDArray[np.int32]


class BlockCounts(NamedTuple):
    """Where the pool's blocks are; the three always sum to the pool's size."""

    free: int
    cached: int
    held: int


class BlockPool:
    """Reference counts, a free list and a prefix index over `num_blocks` blocks."""

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError(f"a pool needs at least one block, not {num_blocks}")
        self.num_blocks = num_blocks
        self._references = np.zeros(num_blocks, dtype=np.int32)
        self._free = list(range(num_blocks - 1, -1, -1))
        self._cached: dict[int, None] = {}  # unheld and published, oldest release first
        self._block_of: dict[BlockKey, int] = {}
        self._key_of: dict[int, BlockKey] = {}
        self._num_held = 0

    @property
    def num_available(self) -> int:
        """Blocks that `allocate` can hand out: free ones, and cached ones after eviction."""
        return len(self._free) + len(self._cached)

    @property
    def counts(self) -> BlockCounts:
        return BlockCounts(len(self._free), len(self._cached), self._num_held)

    @property
    def references(self) -> Blocks:
        """How many tables hold each block: a read-only view."""
        view = self._references.view()
        view.flags.writeable = False
        return view

    def num_unheld(self, blocks: Sequence[int]) -> int:
        """How many of these published blocks nobody holds; pinning them takes them from stock."""
        return int((self._references[list(blocks)] == 0).sum())

    def allocate(self, num: int) -> Blocks:
        """Take `num` blocks with one reference each; evicts the oldest cached ones if it must.

        Raises:
            AssertionError: fewer are available; callers check `num_available` first.
        """
        assert num <= self.num_available, f"{num} blocks wanted, {self.num_available} available"
        while len(self._free) < num:
            self._evict_oldest()
        cut = len(self._free) - num
        taken = np.array(self._free[cut:][::-1], dtype=np.int32)
        del self._free[cut:]
        self._references[taken] = 1
        self._num_held += num
        return taken

    def pin(self, blocks: Sequence[int]) -> None:
        """Add a reference to each of these published or held blocks; they stay until released."""
        for block in blocks:
            if self._references[block] == 0:
                del self._cached[block]
                self._num_held += 1
            self._references[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        """Drop one reference of each block, the last first.

        A row's tail thus ages before its head: evicting a head would make the tail unreachable.
        """
        for block in reversed([int(block) for block in blocks]):
            assert self._references[block] > 0, f"block {block} released more often than held"
            self._references[block] -= 1
            if self._references[block] == 0:
                self._num_held -= 1
                if block in self._key_of:
                    self._cached[block] = None
                else:
                    self._free.append(block)

    def match(self, keys: Sequence[BlockKey]) -> list[int]:
        """The blocks of the longest published prefix of `keys`. Does not pin them."""
        blocks = []
        for key in keys:
            block = self._block_of.get(key)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def publish(self, block: int, key: BlockKey) -> None:
        """Make a held, fully computed block findable. Does nothing if the key is known already."""
        assert self._references[block] > 0, f"block {block} is published but not held"
        if key not in self._block_of and block not in self._key_of:
            self._block_of[key] = block
            self._key_of[block] = key

    def forget(self, blocks: Iterable[int]) -> None:
        """Make held blocks unfindable, because what is in them cannot be trusted."""
        for block in blocks:
            key = self._key_of.pop(int(block), None)
            if key is not None:
                del self._block_of[key]

    def _evict_oldest(self) -> None:
        block = next(iter(self._cached))
        del self._cached[block]
        del self._block_of[self._key_of.pop(block)]
        self._free.append(block)

    def check(self, tables: Iterable[Blocks]) -> None:
        """Recount everything against the tables that hold blocks.

        Raises:
            AssertionError: the pool and the tables disagree.
        """
        held = np.zeros(self.num_blocks, dtype=np.int32)
        for table in tables:
            np.add.at(held, table, 1)
        assert np.array_equal(held, self._references), "reference counts differ from the tables"
        assert self._num_held == int((held > 0).sum()), "the count of held blocks is off"
        unheld = [*self._free, *self._cached]
        assert len(set(unheld)) == len(unheld) == self.num_blocks - self._num_held
        assert not held[unheld].any(), "a held block is also free"
        assert all(self._block_of[key] == block for block, key in self._key_of.items())
        assert len(self._block_of) == len(self._key_of), "the prefix index is not one to one"
        assert set(self._cached) <= set(self._key_of), "a cached block has no key"
        assert not set(self._free) & set(self._key_of), "a free block still has a key"
