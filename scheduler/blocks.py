"""The KV block pool: who holds which block, and which unheld blocks are still worth finding.

A block is in exactly one of three places: on the free list, unheld but cached (findable in the
prefix index, oldest release evicted first), or held by `references` tables. The pool knows nothing
of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cadenza.scheduler.columns import all_true
from cadenza.scheduler.eviction_queue import EvictionQueue
from cadenza.scheduler.prefix_index import Blocks, Keys, Prefix, PrefixIndex, Tokens

Rank = Callable[[Blocks], npt.NDArray[np.float64]]

# Cached blocks that an eviction takes at least: so many, or this share of them if that is less
EVICTED_AHEAD = 2048
SHARE_AHEAD = 64


class BlockCounts(NamedTuple):
    """Where the pool's blocks are; the three always sum to the pool's size."""

    free: int
    cached: int
    held: int


class BlockPool:
    """Reference counts and a free list over `num_blocks` blocks, and the prefix index over them."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 1:
            raise ValueError(f"a pool needs at least one block, not {num_blocks}")
        self.num_blocks = num_blocks
        self.index = PrefixIndex(num_blocks, block_size)
        self._references = np.zeros(num_blocks, dtype=np.int32)
        self._free: Blocks = np.arange(num_blocks - 1, -1, -1, dtype=np.int32)  # a stack
        self._num_free = num_blocks
        self._cached = EvictionQueue(num_blocks)  # unheld and published
        self._num_held = self._num_reserved = 0
        self._rank: Rank | None = None
        self._ranked: Blocks | None = None  # by `_rank`, lowest first; None: not yet
        self._distrusted = np.zeros(num_blocks, dtype=bool)  # until they are allocated anew
        self._any_distrusted = False

    @property
    def num_available(self) -> int:
        """Blocks that `allocate` can hand out: free ones, and cached ones after eviction."""
        return self._num_free + self._cached.num - self._num_reserved

    @property
    def counts(self) -> BlockCounts:
        return BlockCounts(self._num_free, self._cached.num, self._num_held)

    @property
    def references(self) -> Blocks:
        """How many tables hold each block: a read-only view."""
        view = self._references.view()
        view.flags.writeable = False
        return view

    def num_unheld(self, blocks: Blocks) -> int:
        """How many of these published blocks nobody holds; pinning them takes them from stock."""
        return len(blocks) - int(np.count_nonzero(self._references[blocks]))

    def allocate(self, num: int) -> Blocks:
        """Take `num` blocks with one reference each; evicts the oldest cached ones if it must.

        From a large cache it evicts some more at once, as many cost hardly more than a few.

        Raises:
            AssertionError: fewer are available; callers check `num_available` first.
        """
        assert num <= self.num_available, f"{num} blocks wanted, {self.num_available} available"
        if num > self._num_free:
            ahead = min(EVICTED_AHEAD, self._cached.num // SHARE_AHEAD)
            self._evict(max(num - self._num_free, ahead))
        self._num_free -= num
        taken = self._free[self._num_free : self._num_free + num][::-1].astype(np.intp)
        self._references[taken] = 1
        if self._any_distrusted:
            self._distrusted[taken] = False
            self._any_distrusted = bool(self._distrusted.any())
        self._num_held += num
        return taken

    def reserve(self, num: int) -> None:
        """Set `num` blocks aside for the next `allocate_reserved`; evicts nothing yet."""
        assert num <= self.num_available, f"{num} blocks wanted, {self.num_available} available"
        self._num_reserved += num

    def allocate_reserved(self) -> Blocks:
        """All blocks that were set aside, as `allocate` hands them out."""
        num, self._num_reserved = self._num_reserved, 0
        return self.allocate(num)

    def pin(self, blocks: Blocks) -> None:
        """Add a reference to each of these published or held blocks; they stay until released."""
        if not len(blocks):
            return
        unheld = blocks[self._references[blocks] == 0]
        self._cached.discard(unheld)
        self._num_held += len(unheld)
        self._references[blocks] += 1

    def release(self, *tables: Blocks) -> None:
        """Drop one reference of each block of each table, one table after another.

        No table has a block twice, and of several tables no more have it than hold it.

        Each from its end: a row's tail thus ages before its head. Evicting a head would make the
        tail unreachable.
        """
        blocks = np.concatenate([table[::-1] for table in tables], dtype=np.intp)
        if all_true(self._references[blocks] == 1):  # then each is given once, too
            self._references[blocks] = 0
            unheld = blocks
        else:
            unheld = self._release_shared(blocks)
        self._num_held -= len(unheld)
        published = self.index.names[unheld] != 0
        self._cached.push(unheld[published])
        self._set_free(unheld[~published])

    def _release_shared(self, blocks: Blocks) -> Blocks:
        """Drop a reference of blocks that may be given several times; those nobody holds then."""
        np.subtract.at(self._references, blocks, 1)
        left = self._references[blocks]
        assert left.min(initial=0) >= 0, "a block is released more often than held"
        return _last_of_each(blocks[left == 0])

    def publish(self, prefix: Prefix, keys: Keys, tokens: Tokens, blocks: list[int]) -> Prefix:
        """Make held blocks findable, as `PrefixIndex.publish` does; frees what was in the way."""
        end, displaced = self.index.publish(prefix, keys, tokens, blocks)
        self._free_unfindable(np.array(displaced, dtype=np.intp))
        return end

    def distrust(self, blocks: Blocks) -> None:
        """What is in these held blocks must not be found, now or by a later `publish`."""
        self._distrusted[blocks] = True
        self._any_distrusted |= len(blocks) > 0
        self._free_unfindable(self.index.remove(blocks))

    def num_trusted(self, blocks: Blocks) -> int:
        """How many of the blocks come before the first distrusted one."""
        if not self._any_distrusted:
            return len(blocks)
        distrusted = self._distrusted[blocks]
        return int(distrusted.argmax()) if distrusted.any() else len(blocks)

    def rank_evictions(self, rank: Rank | None) -> None:
        """Until the next call: how to rank cached blocks if some have to be evicted, once.

        `rank` gets them, the oldest first, and returns a score each; the lowest are evicted first.
        None: the oldest are.
        """
        self._rank, self._ranked = rank, None

    def reset_cache(self) -> None:
        """Make every block unfindable; unheld ones are free then. Held ones stay held."""
        self._evict(self._cached.num)
        self.distrust(np.flatnonzero(self._references))

    def _evict(self, num: int) -> None:
        if self._rank is None or num == self._cached.num:
            first = self._cached.pop(num)
        else:
            first = self._pop_lowest(num, self._rank)
        behind = self.index.remove(first)
        self._set_free(first)
        self._free_unfindable(behind)

    def _pop_lowest(self, num: int, rank: Rank) -> Blocks:
        """The lowest of those that were ranked, as far as they last, then the oldest."""
        if self._ranked is None:
            cached = self._cached.blocks()
            self._ranked = cached[np.argsort(rank(cached), kind="stable")]
        left = self._ranked[self._cached.has(self._ranked)]
        lowest, self._ranked = left[:num], left[num:]
        self._cached.discard(lowest)
        return np.concatenate((lowest, self._cached.pop(num - len(lowest))))

    def _free_unfindable(self, blocks: Blocks) -> None:
        """Free those of the blocks, just removed from the index, that were cached."""
        cached = blocks[self._cached.has(blocks)]
        self._cached.discard(cached)
        self._set_free(cached)

    def _set_free(self, blocks: Blocks) -> None:
        self._free[self._num_free : self._num_free + len(blocks)] = blocks
        self._num_free += len(blocks)

    def check(self, tables: Iterable[Blocks]) -> None:
        """Recount everything against the tables that hold blocks.

        Raises:
            AssertionError: the pool and the tables disagree.
        """
        nothing = np.empty(0, dtype=np.intp)
        held = np.bincount(np.concatenate((nothing, *tables)), minlength=self.num_blocks)
        assert np.array_equal(held, self._references), "reference counts differ from the tables"
        assert not self._num_reserved, "blocks are reserved and not allocated"
        assert self._num_held == int((held > 0).sum()), "the count of held blocks is off"
        cached = self._cached.blocks().tolist()
        free = self._free[: self._num_free].tolist()
        unheld = [*free, *cached]
        assert len(set(unheld)) == len(unheld) == self.num_blocks - self._num_held
        assert not held[unheld].any(), "a held block is also free"
        assert self.index.names[cached].all(), "a cached block has no key"
        assert not self.index.names[free].any(), "a free block has a key"
        self.index.check()


def _last_of_each(blocks: Blocks) -> Blocks:
    """The blocks, each once, where it stands last."""
    _, places = np.unique(blocks[::-1], return_index=True)
    if len(places) == len(blocks):
        return blocks
    return blocks[np.sort(len(blocks) - 1 - places)]
