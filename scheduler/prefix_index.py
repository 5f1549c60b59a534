"""The prefix index: which block holds the keys and values of which prefix.

A block is published under the key of its tokens and all before them. A key alone proves nothing,
since two prefixes with one key would read each other's values. So each publication has a name, used
once, and a block is believed to continue a prefix only if it was published after the very
publication that ends this prefix, and holds the very tokens.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from cadenza.scheduler.prefix import BlockKey

Blocks = npt.NDArray[np.int32]
Names = npt.NDArray[np.int64]
Tokens = npt.NDArray[np.int32]

_MOST_ROOTS = 1 << 16  # salts that are remembered, the last used; under others nothing is found
_UNPUBLISHED = 0
_NO_BLOCK = -1


class Prefix(NamedTuple):
    """A published prefix, by the block that ends it; it lives as long as that publication."""

    block: int  # -1: the empty prefix
    name: int


class Watcher(Protocol):
    """Is told when prefixes appear and disappear."""

    def on_published(self, keys: Sequence[BlockKey]) -> None:
        """Blocks with these keys can be found from now on."""

    def on_unpublished(self, blocks: Blocks) -> None:
        """These blocks cannot be found any more."""


class PrefixIndex:
    """Published blocks by key. Knows nothing of reference counts."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.watcher: Watcher | None = None
        self.names: Names = np.zeros(num_blocks, dtype=np.int64)  # 0: not published
        self._after: Names = np.zeros(num_blocks, dtype=np.int64)  # name of the publication before
        self._tokens: Tokens = np.zeros((num_blocks, block_size), dtype=np.int32)
        self._keys = np.empty(num_blocks, dtype=object)
        self._block_of: dict[BlockKey, int] = {}
        self._roots: OrderedDict[str, int] = OrderedDict()  # salt -> name, below 0
        self._last_name = self._last_root = 0

    def __len__(self) -> int:
        """Published blocks."""
        return len(self._block_of)

    def root(self, salt: str) -> Prefix:
        """The empty prefix under `salt`."""
        name = self._roots.get(salt)
        if name is None:
            self._last_root -= 1
            name = self._roots[salt] = self._last_root
            if len(self._roots) > _MOST_ROOTS:
                self._roots.popitem(last=False)
        else:
            self._roots.move_to_end(salt)
        return Prefix(_NO_BLOCK, name)

    def is_alive(self, prefix: Prefix) -> bool:
        """Whether the prefix can still be continued."""
        return prefix.block < 0 or bool(self.names[prefix.block] == prefix.name)

    def end(self, prefix: Prefix, blocks: Sequence[int] | Blocks) -> Prefix:
        """The prefix that ends with the last of `blocks`, or `prefix` if there are none."""
        return Prefix(int(blocks[-1]), int(self.names[blocks[-1]])) if len(blocks) else prefix

    def match(self, prefix: Prefix, keys: Iterable[BlockKey], tokens: Tokens) -> Blocks:
        """The blocks that continue `prefix`, as far as they are published.

        tokens: [keys, block_size], what the keys stand for.
        """
        found: list[int] = []
        for key in keys:
            block = self._block_of.get(key)
            if block is None:
                break
            found.append(block)
        blocks = np.array(found, dtype=np.int32)
        if not found:
            return blocks
        before = np.concatenate(((prefix.name,), self.names[blocks[:-1]]))
        right = self._after[blocks] == before
        right &= (self._tokens[blocks] == tokens[: len(blocks)]).all(axis=1)
        return blocks if right.all() else blocks[: int(right.argmin())]

    def publish(
        self, prefix: Prefix, keys: Sequence[BlockKey], tokens: Tokens, blocks: list[int]
    ) -> tuple[Prefix, list[int]]:
        """Make held, fully computed blocks findable after `prefix`, which must be alive.

        A block whose tokens are findable already is left alone, and the next one continues the
        publication that is there. One that is in the way, because what it continued is gone or its
        key means something else, is no longer findable.

        Returns the prefix that ends with the last block, and the blocks that were in the way.
        """
        if self._take(keys, blocks):
            return self._add_run(prefix, keys, tokens, blocks), []
        displaced: list[int] = []
        for index, (key, block) in enumerate(zip(keys, blocks, strict=True)):
            known = self.match(prefix, [key], tokens[index : index + 1])
            if len(known):
                prefix = self.end(prefix, known)
                continue
            for other in (self._block_of.get(key, block), block):
                if self.names[other] != _UNPUBLISHED:
                    self.remove(np.array([other], dtype=np.int32))
                    displaced.append(other)
            self._block_of[key] = block
            prefix = self._add_run(prefix, [key], tokens[index : index + 1], [block])
        return prefix, displaced

    def publish_runs(
        self,
        names: Names,
        starts: npt.NDArray[np.intp],
        keys: Sequence[BlockKey],
        tokens: Tokens,
        blocks: Blocks,
    ) -> bool:
        """`publish` for many runs of blocks, one after another, if nothing at all is in the way.

        names: of the publications that the runs continue, all alive. starts: where each begins.
        Returns whether it was done.
        """
        if not self._take(keys, blocks.tolist()):
            return False
        after = np.arange(self._last_name, self._last_name + len(blocks))
        after[starts] = names
        self._add(after, keys, tokens, blocks)
        return True

    def _take(self, keys: Sequence[BlockKey], blocks: Sequence[int]) -> bool:
        """Enter the blocks under their keys if neither has a publication yet; all or none."""
        if self.names[blocks].any():
            return False
        entered = list(map(self._block_of.setdefault, keys, blocks))
        if entered == blocks:
            return True
        for key, block, other in zip(keys, blocks, entered, strict=True):
            if block == other:
                del self._block_of[key]
        return False

    def remove(self, blocks: Blocks) -> None:
        """Make these blocks unfindable, as far as they were findable; none twice."""
        blocks = blocks[self.names[blocks] != _UNPUBLISHED]
        if not len(blocks):
            return
        for key in self._keys[blocks].tolist():
            del self._block_of[key]
        self._keys[blocks] = None
        self.names[blocks] = _UNPUBLISHED
        if self.watcher is not None:
            self.watcher.on_unpublished(blocks)

    def _add_run(
        self, prefix: Prefix, keys: Sequence[BlockKey], tokens: Tokens, blocks: Sequence[int]
    ) -> Prefix:
        if not len(blocks):
            return prefix
        after = np.arange(self._last_name, self._last_name + len(blocks))
        after[0] = prefix.name
        self._add(after, keys, tokens, blocks)
        return Prefix(blocks[-1], self._last_name)

    def _add(
        self,
        after: Names,
        keys: Sequence[BlockKey],
        tokens: Tokens,
        blocks: Sequence[int] | Blocks,
    ) -> None:
        first = self._last_name + 1
        self._last_name += len(blocks)
        self.names[blocks] = np.arange(first, first + len(blocks))
        self._after[blocks] = after
        self._tokens[blocks] = tokens
        self._keys[blocks] = keys
        if self.watcher is not None:
            self.watcher.on_published(keys)

    def check(self) -> None:
        """Raises AssertionError where the index contradicts itself."""
        published = np.flatnonzero(self.names)
        names = self.names[published]
        assert len(set(names.tolist())) == len(published) == len(self._block_of)
        for block in published.tolist():
            assert self._block_of[self._keys[block]] == block, "the index is not one to one"
