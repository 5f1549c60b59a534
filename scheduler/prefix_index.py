"""The prefix index: a tree of full blocks, found by key and believed only after comparing tokens.

A node stands for one block's tokens after one particular prefix. It outlives its block while nodes
below it have theirs, so that a prefix that was evicted in the middle is whole again once somebody
computes the missing block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol
from weakref import WeakValueDictionary

from cadenza.scheduler.prefix import BlockKey, root_key

_ROOT_BLOCK = -1


class Node:
    """One block of tokens after the prefix that its ancestors spell.

    Children form a chain of siblings, as a dict in each of very many nodes would cost more than
    all the rest.
    """

    __slots__ = (
        "__weakref__",
        "block",
        "child",
        "depth",
        "in_tree",
        "key",
        "next",
        "parent",
        "previous",
        "tokens",
        "waiting",
    )

    def __init__(self, key: BlockKey, parent: Node | None, tokens: bytes) -> None:
        """Make a node and, unless it is a root, the youngest child of `parent`."""
        self.key = key
        self.parent = parent
        self.tokens = tokens
        self.block: int | None = None  # None: evicted, or not computed yet
        self.waiting: dict[int, None] | None = None  # rows whose cached prefix ends here
        self.child: Node | None = None  # the youngest
        self.previous: Node | None = None  # the next younger sibling
        self.in_tree = True
        if parent is None:
            self.depth = 0
            self.next: Node | None = None  # the next older sibling
        else:
            self.depth = parent.depth + 1
            older = self.next = parent.child
            if older is not None:
                older.previous = self
            parent.child = self

    def children(self) -> Iterator[Node]:
        """Nodes right below, youngest first."""
        each = self.child
        while each is not None:
            yield each
            each = each.next

    def unlink(self) -> None:
        """Be a child no longer."""
        assert self.parent is not None
        if self.previous is not None:
            self.previous.next = self.next
        else:
            self.parent.child = self.next
        if self.next is not None:
            self.next.previous = self.previous
        self.previous = self.next = None
        self.in_tree = False


class Watcher(Protocol):
    """Is told when prefixes appear and disappear."""

    def on_published(self, node: Node) -> None:
        """The node has a block from now on."""

    def on_evicted(self, node: Node) -> None:
        """The node has no block any more."""


class PrefixIndex:
    """Nodes by key and by block. Knows nothing of reference counts."""

    def __init__(self) -> None:
        self.watcher: Watcher | None = None
        self.wanted: dict[BlockKey, dict[int, None]] = {}  # key -> rows that lack this block first
        self._nodes: dict[BlockKey, Node] = {}
        self._of_block: dict[int, Node] = {}
        self._roots: WeakValueDictionary[str, Node] = WeakValueDictionary()  # by salt

    def __len__(self) -> int:
        """Published blocks."""
        return len(self._of_block)

    def __contains__(self, block: int) -> bool:
        return block in self._of_block

    def root(self, salt: str) -> Node:
        """Where every prefix under `salt` begins."""
        node = self._roots.get(salt)
        if node is None:
            node = self._roots[salt] = Node(root_key(salt), None, b"")
            node.block = _ROOT_BLOCK
        return node

    def child(self, parent: Node, key: BlockKey, tokens: bytes) -> Node | None:
        """The node of `tokens` right after `parent`, with a block or without.

        A key alone proves nothing: two prefixes with one key would read each other's values.
        """
        node = self._nodes.get(key)
        if node is None or node.parent is not parent or node.tokens != tokens:
            return None
        return node

    def publish(
        self, parent: Node, keys: Sequence[BlockKey], raw: bytes, blocks: Sequence[int]
    ) -> Node | None:
        """Make fully computed blocks findable, each unless its tokens are findable already.

        Returns the node of the last one's tokens, whichever block it has; None if a key stands for
        other tokens, so that nothing after them can be published either.

        Args:
            parent: the node of what comes before them.
            keys: one a block.
            raw: ids of all their tokens, little-endian int32.
            blocks: one after another in the sequence, all held.
        """
        nodes, of_block, wanted = self._nodes, self._of_block, self.wanted
        node = parent if parent.in_tree else self._attach(parent)
        size, start = len(raw) // max(1, len(blocks)), 0
        for key, block in zip(keys, blocks, strict=True):
            if node is None:
                break
            before, tokens = node, raw[start : start + size]
            start += size
            node = nodes.get(key)
            if node is None:
                node = nodes[key] = Node(key, before, tokens)
            elif node.parent is not before or node.tokens != tokens:
                return None
            if node.block is None and block not in of_block:
                node.block = block
                of_block[block] = node
                if key in wanted and self.watcher is not None:
                    self.watcher.on_published(node)
        return node

    def remove(self, block: int) -> None:
        """Make a block unfindable, if it was findable."""
        node = self._of_block.pop(block, None)
        if node is None:
            return
        node.block = None
        if self.watcher is not None:
            self.watcher.on_evicted(node)
        if node.child is None:
            self._prune(node)

    def blocks(self, node: Node) -> list[int]:
        """The blocks of the whole prefix that ends with `node`, first to last."""
        found: list[int] = []
        each: Node | None = node
        while each is not None and each.parent is not None:
            assert each.block is not None, "a hole in a cached prefix"
            found.append(each.block)
            each = each.parent
        return found[::-1]

    def _attach(self, node: Node) -> Node | None:
        """The node of the same prefix that is in the tree now; put back if it was pruned."""
        if node.in_tree:
            return node
        assert node.parent is not None
        parent = self._attach(node.parent)
        if parent is None:
            return None
        known = self._nodes.get(node.key)
        if known is None:
            known = self._nodes[node.key] = Node(node.key, parent, node.tokens)
        return known if known.parent is parent and known.tokens == node.tokens else None

    def _prune(self, node: Node) -> None:
        while node.block is None and node.child is None and node.parent is not None:
            del self._nodes[node.key]
            node.unlink()
            node = node.parent

    def check(self) -> None:
        """Raises AssertionError where the tree contradicts itself."""
        for block, node in self._of_block.items():
            assert node.block == block, "a node and its block disagree"
            assert self._nodes[node.key] is node, "a published node is not in the tree"
        for key, node in self._nodes.items():
            assert node.key == key
            assert node.parent is not None
            assert node.in_tree
            assert node in node.parent.children(), "a node is no child of its parent"
            assert node.block is not None or node.child, "a node without use"
            assert node.block is None or self._of_block[node.block] is node
