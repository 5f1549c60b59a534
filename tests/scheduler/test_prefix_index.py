"""The prefix index: a tree that never shows what was not published, nor loses what was."""

import gc

import pytest

from cadenza.scheduler.prefix_index import Node, PrefixIndex

A, B, C, D = (bytes([letter]) * 32 for letter in range(4))


class Heard:
    """Remembers what the index announced, as ("published" or "evicted", tokens)."""

    def __init__(self) -> None:
        self.events: list[tuple[str, bytes]] = []

    def on_published(self, node: Node) -> None:
        assert node.block is not None
        self.events.append(("published", node.tokens))

    def on_evicted(self, node: Node) -> None:
        assert node.block is None
        self.events.append(("evicted", node.tokens))


def publish(
    index: PrefixIndex, parent: Node, key: bytes, block: int, tokens: bytes | None = None
) -> Node | None:
    """One block; its key stands for itself as tokens unless others are given."""
    return index.publish(parent, [key], tokens or key, [block])


def path(index: PrefixIndex, *parts: tuple[bytes, int], salt: str = "") -> list[Node]:
    """Publish one block under the other, one by one."""
    nodes = [index.root(salt)]
    for key, block in parts:
        node = publish(index, nodes[-1], key, block)
        assert node is not None
        nodes.append(node)
    index.check()
    return nodes


def test_a_published_path_is_found_step_by_step():
    index = PrefixIndex()
    root, a, b = path(index, (A, 4), (B, 2))

    assert index.child(root, A, A) is a
    assert index.child(a, B, B) is b
    assert index.blocks(b) == [4, 2]
    assert index.blocks(root) == []
    assert (root.depth, a.depth, b.depth) == (0, 1, 2)
    assert len(index) == 2
    assert 4 in index
    assert 3 not in index


def test_a_key_is_believed_only_after_comparing_tokens_and_parent():
    index = PrefixIndex()
    root, a, b = path(index, (A, 0), (B, 1))

    assert index.child(root, A, b"other tokens") is None
    assert index.child(root, B, B) is None, "B was published after A, not at the start"
    assert index.child(b, A, A) is None
    assert index.child(a, C, C) is None


def test_what_collides_is_not_published_and_nothing_changes():
    index = PrefixIndex()
    root, _, b = path(index, (A, 0), (B, 1))

    assert publish(index, root, A, 5, b"other tokens") is None
    assert publish(index, root, B, 5) is None
    assert publish(index, index.root("salt"), A, 5) is None

    assert len(index) == 2
    assert index.blocks(b) == [0, 1]
    index.check()


def test_the_first_block_of_some_tokens_stays_the_one_that_is_found():
    index = PrefixIndex()
    root, a = path(index, (A, 0))

    assert publish(index, root, A, 7) is a
    assert index.blocks(a) == [0]
    assert 7 not in index


def test_a_block_stands_for_one_prefix_only():
    index = PrefixIndex()
    _, a, b = path(index, (A, 0), (B, 1))

    node = publish(index, a, C, 1)

    assert node is None or node.block is None
    assert index.blocks(b) == [0, 1]


def test_salts_have_roots_of_their_own():
    index = PrefixIndex()
    path(index, (A, 0))

    assert index.child(index.root("salt"), A, A) is None
    assert index.root("salt").key != index.root("").key


def test_a_root_is_forgotten_with_its_last_node():
    """Salts come from clients: nothing may grow with all that were ever seen."""
    index = PrefixIndex()
    for salt in range(50):
        path(index, (bytes([salt]), salt), salt=str(salt))
    for block in range(50):
        index.remove(block)
    gc.collect()

    assert len(index._roots) == 0
    assert len(index._nodes) == 0


def test_a_leaf_that_is_removed_is_pruned_with_those_above_that_have_no_block():
    index = PrefixIndex()
    root, a, b, _ = path(index, (A, 0), (B, 1), (C, 2))
    index.remove(1)
    assert index.child(a, B, B) is b, "it stays while something below has a block"

    index.remove(2)

    assert index.child(b, C, C) is None
    assert index.child(a, B, B) is None
    assert index.child(root, A, A) is a
    index.check()


def test_removing_twice_or_what_was_never_published_changes_nothing():
    index = PrefixIndex()
    heard = index.watcher = Heard()
    path(index, (A, 0))
    index.remove(0)
    index.remove(0)
    index.remove(9)

    assert heard.events == [("evicted", A)]
    assert len(index) == 0


def test_a_prefix_evicted_in_the_middle_is_whole_again_once_the_block_is_back():
    index = PrefixIndex()
    _, a, b, c = path(index, (A, 0), (B, 1), (C, 2))
    index.remove(1)
    with pytest.raises(AssertionError, match="a hole in a cached prefix"):
        index.blocks(c)

    assert publish(index, a, B, 8) is b

    assert index.blocks(c) == [0, 8, 2]
    index.check()


def test_a_pruned_parent_is_put_back_without_a_block():
    """A row whose own blocks were duplicates goes on after those that were found are evicted."""
    index = PrefixIndex()
    root, _, b = path(index, (A, 0), (B, 1))
    index.remove(0)
    index.remove(1)
    assert index.child(root, A, A) is None

    c = publish(index, b, C, 2)

    assert c is not None
    back = index.child(root, A, A)
    assert back is not None
    assert back.block is None, "nobody computed its block again"
    assert c.parent is index.child(back, B, B)
    index.check()
    path(index, (A, 5), (B, 6))
    assert index.blocks(c) == [5, 6, 2]


def test_a_pruned_parent_joins_the_node_that_took_its_place():
    index = PrefixIndex()
    _, old = path(index, (A, 0))
    index.remove(0)
    _, new = path(index, (A, 3))
    assert new is not old

    b = publish(index, old, B, 4)

    assert b is not None
    assert b.parent is new
    assert index.blocks(b) == [3, 4]
    index.check()


def test_a_pruned_parent_whose_key_stands_for_other_tokens_now_publishes_nothing():
    index = PrefixIndex()
    root, old = path(index, (A, 0))
    index.remove(0)
    assert publish(index, root, A, 3, b"other tokens") is not None

    assert publish(index, old, B, 4) is None

    assert 4 not in index
    index.check()


def test_a_collision_below_a_pruned_parent_leaves_nothing_behind():
    index = PrefixIndex()
    _, _, b = path(index, (A, 0), (B, 1))
    index.remove(1)
    index.remove(0)
    root, other = path(index, (C, 2))

    assert publish(index, b, C, 3) is None

    index.check()
    assert len(index._nodes) == 1
    assert index.child(root, C, C) is other


def test_a_run_is_the_same_as_one_block_after_the_other():
    index = PrefixIndex()
    root, a = path(index, (A, 0))

    c = index.publish(root, [A, B, C], A + B + C, [5, 6, 7])

    assert c is not None
    assert index.blocks(c) == [0, 6, 7]
    assert [node.depth for node in (a, c.parent, c) if node] == [1, 2, 3]
    index.check()


def test_a_run_ends_at_the_first_collision():
    index = PrefixIndex()
    root, _ = path(index, (B, 0))

    assert index.publish(root, [A, B, C], A + B + C, [5, 6, 7]) is None

    assert (5 in index, 6 in index, 7 in index) == (True, False, False)
    index.check()


def test_an_empty_run_publishes_nothing():
    index = PrefixIndex()
    _, a = path(index, (A, 0))

    assert index.publish(a, [], b"", []) is a
    assert len(index) == 1


def test_siblings_leave_in_any_order():
    for gone in ([0, 1, 2], [2, 1, 0], [1, 0, 2], [1, 2, 0]):
        index = PrefixIndex()
        root = index.root("")
        for block, key in enumerate((A, B, C)):
            publish(index, root, key, block)
        left = [A, B, C]
        for block in gone:
            index.remove(block)
            left.remove(bytes([block]) * 32)
            assert [node.key for node in root.children()] == left[::-1]
            index.check()


def test_the_watcher_hears_what_somebody_wants_and_all_that_ceases_to_be():
    index = PrefixIndex()
    heard = index.watcher = Heard()
    index.wanted.update({A: {0: None}, B: {1: None}})
    root, *_ = path(index, (A, 0), (B, 1))
    publish(index, root, A, 5)  # findable already
    publish(index, root, B, 6)  # a collision
    index.remove(0)
    publish(index, root, A, 7)
    publish(index, root, D, 8)  # nobody lacks it

    assert heard.events == [
        ("published", A),
        ("published", B),
        ("evicted", A),
        ("published", A),
    ]
