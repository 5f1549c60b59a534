"""The prefix index: which block holds the keys and values of which prefix.

Published blocks form a tree: each continues another one, or begins a prefix under a salt. Each
publication has a name, used once, and a block is believed to continue a prefix only if it was
published after the very publication that ends this prefix, and holds the very tokens. A key alone
proves nothing, since two prefixes with one key would read each other's values.

Of the blocks that continue one, the first is its heir and found without its key. So what a row
generates, which hardly ever has a sibling, is published without hashing it. The others, and all
that begin a prefix, are branches, and found by key.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from cadenza.scheduler.columns import BoolColumn, all_true, where
from cadenza.scheduler.prefix import BlockKey

# int32 in tables, intp where they are indices time and again: NumPy converts any others each time
Blocks = npt.NDArray[np.signedinteger[Any]]
Names = npt.NDArray[np.int64]
Tokens = npt.NDArray[np.int32]
Runs = npt.NDArray[np.intp]

_MOST_ROOTS = 1 << 16  # salts that are remembered, the last used; under others nothing is found
_UNPUBLISHED = 0
_NO_BLOCK = -1

# Of each block side by side, in half a cache line, since they are read and written together
_LINKS = np.dtype(
    [
        ("name", np.int64),
        ("after", np.int64),  # the name of what it continues
        ("heir", np.int32),
        ("awaited", np.int32),  # how many wait for what continues it; the watcher counts
        ("is_branch", np.bool_),
        ("has_branches", np.bool_),
        ("padding", "V6"),
    ]
)


class Prefix(NamedTuple):
    """A published prefix, by the block that ends it; it lives as long as that publication."""

    block: int  # -1: the empty prefix
    name: int


class Keys(Protocol):
    """The keys of successive blocks."""

    def __getitem__(self, index: int, /) -> BlockKey: ...


class Watcher(Protocol):
    """Is told when prefixes appear and disappear."""

    def on_published(self, keys: Sequence[BlockKey]) -> None:
        """Blocks with these keys can be found from now on, each perhaps with others behind it.

        Told of those that begin a prefix, are branches, or are awaited, and of no others.
        """

    def on_unpublished(self, blocks: Blocks) -> None:
        """These blocks cannot be found any more."""


class PrefixIndex:
    """Published blocks by what they continue. Knows nothing of reference counts."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.watcher: Watcher | None = None
        links = np.zeros(num_blocks, dtype=_LINKS)
        self.names: Names = links["name"]
        self.awaited: Blocks = links["awaited"]
        self._after: Names = links["after"]
        self._heir: Blocks = links["heir"]
        self._heir[:] = _NO_BLOCK
        self._is_branch: BoolColumn = links["is_branch"]
        self._has_branches: BoolColumn = links["has_branches"]
        self._branches_of: dict[int, set[int]] = {}  # by name; not of roots, which nobody removes
        self._tokens: Tokens = np.zeros((num_blocks, block_size), dtype=np.int32)
        self._whole_blocks = _whole(self._tokens)
        self._branches: dict[tuple[int, BlockKey], int] = {}  # by (name of what it continues, key)
        self._places: dict[int, tuple[int, BlockKey]] = {}  # of each block among the branches
        self._roots: OrderedDict[str, Prefix] = OrderedDict()  # by salt; their names are below 0
        self._last_name = self._last_root = 0

    def __len__(self) -> int:
        """Published blocks."""
        return int(np.count_nonzero(self.names))

    def root(self, salt: str) -> Prefix:
        """The empty prefix under `salt`."""
        root = self._roots.get(salt)
        if root is None:
            self._last_root -= 1
            root = self._roots[salt] = Prefix(_NO_BLOCK, self._last_root)
            if len(self._roots) > _MOST_ROOTS:
                self._roots.popitem(last=False)
        else:
            self._roots.move_to_end(salt)
        return root

    def is_alive(self, prefix: Prefix) -> bool:
        """Whether the prefix can still be continued."""
        return prefix.block < 0 or bool(self.names[prefix.block] == prefix.name)

    def end(self, prefix: Prefix, blocks: Sequence[int] | Blocks) -> Prefix:
        """The prefix that ends with the last of `blocks`, or `prefix` if there are none."""
        return Prefix(int(blocks[-1]), int(self.names[blocks[-1]])) if len(blocks) else prefix

    def match(self, prefix: Prefix, keys: Keys, tokens: Tokens) -> Blocks:
        """The blocks that continue `prefix`, which is alive, as far as they are published.

        tokens: [blocks, block_size]. keys: those of these blocks, or of more.
        """
        found: list[int] = []
        while len(found) < len(tokens):
            heirs = self._heirs(prefix, len(tokens) - len(found))
            found += heirs[: self._num_equal(heirs, tokens[len(found) :])]
            if len(found) == len(tokens):
                break
            prefix = self.end(prefix, found)
            branch = self._branches.get((prefix.name, keys[len(found)]))
            if branch is None or not self._num_equal([branch], tokens[len(found) :]):
                break
            found.append(branch)
            prefix = self.end(prefix, found)
        return np.array(found, dtype=np.intp)

    def _heirs(self, prefix: Prefix, most: int) -> list[int]:
        """The heir of the block that ends a prefix, the heir of that, and so on."""
        heirs: list[int] = []
        block = self._heir.item(prefix.block) if prefix.block >= 0 else _NO_BLOCK
        if block >= 0 and self._after[block] != prefix.name:
            return heirs  # most that lost their heir have none to look for further
        while block >= 0 and len(heirs) < most:
            heirs.append(block)
            block = self._heir.item(block)
        if not heirs:
            return heirs
        names = self.names[heirs]
        before = np.concatenate(((prefix.name,), names[:-1]))
        lives = (names != _UNPUBLISHED) & (self._after[heirs] == before)
        return heirs if lives.all() else heirs[: int(lives.argmin())]

    def _num_equal(self, blocks: list[int], tokens: Tokens) -> int:
        """How many of the blocks hold `tokens`, before the first that does not."""
        if not blocks:
            return 0
        equal = (self._tokens[blocks] == tokens[: len(blocks)]).all(axis=1)
        return len(blocks) if equal.all() else int(equal.argmin())

    def publish(
        self, prefix: Prefix, keys: Keys, tokens: Tokens, blocks: list[int]
    ) -> tuple[Prefix, list[int]]:
        """Make held, fully computed blocks findable after `prefix`, which must be alive.

        Blocks whose tokens are findable already are left alone, and the next one continues the
        publication that is there. What is in the way, because its key means something else or the
        block stands for something else, is no longer findable.

        Returns the prefix that ends with the last block, and the blocks that were in the way.
        """
        known = self.match(prefix, keys, tokens)
        prefix, num = self.end(prefix, known), len(known)
        if num == len(blocks):
            return prefix, []
        blocks, tokens, key = blocks[num:], tokens[num:], keys[num]
        displaced = [block for block in blocks if self.names[block] != _UNPUBLISHED]
        other = self._branches.get((prefix.name, key))
        if other is not None and other not in displaced:
            displaced.append(other)
        displaced += self.remove(np.array(displaced, dtype=np.intp)).tolist()
        self._link(prefix.block, (prefix.name, key), blocks[0])
        names, heads = np.array([prefix.name]), np.array([0])
        held = np.array(blocks, dtype=np.intp)
        self._add(names, heads, tokens, held)
        self._announce([key])
        return self.end(prefix, held), displaced

    def publish_runs(
        self,
        parents: Runs,
        names: Names,
        starts: Runs,
        tokens: Tokens,
        blocks: Blocks,
        key_of: Callable[[int], BlockKey],
    ) -> BoolColumn:
        """`publish` for many runs of unpublished blocks, one after another.

        Args:
            parents, names: the prefixes that the runs continue.
            starts: where each run begins in `tokens` and `blocks`.
            key_of: the key of a run's first block; asked for where it is needed.

        Returns which of the runs were published: not those with anything in their way.
        """
        heads, begins = blocks[starts], parents < 0
        lives = self.names[parents] == names  # never of what begins: no block has a root's name
        plain = lives & (self._heir[parents] == _NO_BLOCK) & (self.awaited[parents] == 0)
        ends, heirs = parents[plain], heads[plain]
        self._heir[ends[::-1]] = heirs[::-1]  # of several the first
        done: BoolColumn = plain.copy()
        done[plain] = self._heir[ends] == heirs
        keys: list[BlockKey] = []
        entered: list[int] = []
        continued: set[int] = set()
        branching = where((begins | lives) & ~plain)
        columns = branching, parents[branching], names[branching], heads[branching]
        for run, parent, name, head in zip(*(each.tolist() for each in columns), strict=True):
            key = key_of(run)
            place = name, key
            if place in self._branches:
                continue
            if parent >= 0:
                known = self.match(Prefix(parent, name), (key,), tokens[starts[run]][None])
                if len(known) or name in continued:
                    continue
                continued.add(name)
            self._link(parent, place, head)
            keys.append(key)
            entered.append(run)
        done[entered] = True
        if not all_true(done):
            kept = np.repeat(done, np.diff(starts, append=len(blocks)))
            starts = (kept.cumsum() - 1)[starts[done]]
            names, tokens, blocks = names[done], tokens[kept], blocks[kept]
        self._add(names, starts, tokens, blocks)
        self._announce(keys)
        return done

    def continued(self, blocks: Blocks) -> npt.NDArray[np.bool_]:
        """Which of these published blocks others continue that are published too."""
        heirs, names = self._heir[blocks], self.names[blocks]
        linked: npt.NDArray[np.bool_] = (heirs >= 0) & (self._after[heirs] == names)
        linked &= self.names[heirs] != _UNPUBLISHED
        branching: npt.NDArray[np.bool_] = self._has_branches[blocks]
        parting = [name in self._branches_of for name in names[branching].tolist()]
        linked[branching] |= np.array(parting, dtype=bool)
        return linked

    def remove(self, blocks: Blocks) -> Blocks:
        """Make these blocks unfindable, as far as they were findable, and all that continue them.

        Returns the latter.
        """
        wave: Blocks = blocks[self.names[blocks] != _UNPUBLISHED]
        if not len(wave):
            return wave
        removed = [wave]
        while len(wave := self._unpublish(wave)):
            removed.append(wave)
        gone = np.concatenate(removed)
        if self.watcher is not None:
            self.watcher.on_unpublished(gone)
        behind: Blocks = gone[len(removed[0]) :]
        return behind

    def _unpublish(self, blocks: Blocks) -> Blocks:
        """Returns what continued these blocks and is published still."""
        names, heirs = self.names[blocks], self._heir[blocks].astype(np.intp)
        self.names[blocks] = _UNPUBLISHED
        still = where((self.names[heirs] != _UNPUBLISHED) & (heirs >= 0))  # mostly few
        behind: Blocks = heirs[still]
        behind = behind[self._after[behind] == names[still]]
        parting = names[self._has_branches[blocks]].tolist()
        branches = [branch for name in parting for branch in self._branches_of.get(name, ())]
        for branch in blocks[self._is_branch[blocks]].tolist():
            place = self._places.pop(branch)
            del self._branches[place]
            if place[0] < 0:
                continue
            self._branches_of[place[0]].discard(branch)
            if not self._branches_of[place[0]]:
                del self._branches_of[place[0]]
        self._is_branch[blocks] = False
        if branches:
            behind = np.unique(np.concatenate((behind, np.array(branches, dtype=np.intp))))
            behind = behind[self.names[behind] != _UNPUBLISHED]
        return behind

    def _link(self, parent: int, place: tuple[int, BlockKey], block: int) -> None:
        """Let a block be found after `parent`: as the heir if there is none, or else by place."""
        if parent >= 0 and self._heir[parent] == _NO_BLOCK:
            self._heir[parent] = block
            return
        self._branches[place], self._places[block] = block, place
        self._is_branch[block] = True
        if parent >= 0:
            self._branches_of.setdefault(place[0], set()).add(block)
            self._has_branches[parent] = True

    def _add(self, names: Names, starts: Runs, tokens: Tokens, blocks: Blocks) -> None:
        """Enter runs of blocks whose heads are linked; arguments as for `publish_runs`."""
        num = len(blocks)
        first, self._last_name = self._last_name + 1, self._last_name + num
        new_names = np.arange(first, first + num)
        after, heir = new_names - 1, np.empty_like(blocks)
        after[starts] = names
        heir[:-1] = blocks[1:]
        heir[starts - 1] = _NO_BLOCK  # of the last of each run; that of the last run stands last
        self.names[blocks], self._after[blocks], self._heir[blocks] = new_names, after, heir
        self._whole_blocks[blocks] = _whole(tokens)
        self._has_branches[blocks] = False

    def _announce(self, keys: Sequence[BlockKey]) -> None:
        if self.watcher is not None and keys:
            self.watcher.on_published(keys)

    def check(self) -> None:
        """Raises AssertionError where the index contradicts itself."""
        published = np.flatnonzero(self.names)
        names = self.names[published]
        assert len(set(names.tolist())) == len(published), "two publications have one name"
        parents = published[self._heir[published] >= 0]
        heirs = self._heir[parents]
        lives = (self._after[heirs] == self.names[parents]) & (self.names[heirs] != _UNPUBLISHED)
        heirs = heirs[lives]
        assert {block: place for place, block in self._branches.items()} == self._places
        branches = np.flatnonzero(self._is_branch).tolist()
        assert set(branches) == set(self._places)
        assert self.names[branches].all(), "a branch that is not published"
        after = np.array([self._places[block][0] for block in branches])
        assert (self._after[branches] == after).all(), "a branch of something else"
        assert set(published.tolist()) == {*branches, *heirs.tolist()}, "published, and not linked"
        after = self._after[published]
        assert np.isin(after[after > 0], names).all(), "published behind what is not"
        by_name = {name: set[int]() for name, _ in self._places.values() if name > 0}
        for block, (name, _) in self._places.items():
            if name > 0:
                by_name[name].add(block)
        assert by_name == self._branches_of


def _whole(tokens: Tokens) -> npt.NDArray[np.void]:
    """[blocks], the tokens of each as one element, which NumPy writes in half the time; a view."""
    return tokens.view(f"V{tokens.itemsize * tokens.shape[1]}")[:, 0]
