"""The prefix index: it never shows what was not published, nor under a key what another means."""

from collections.abc import Sequence

import numpy as np
import pytest

from cadenza.scheduler.prefix_index import Prefix, PrefixIndex

SIZE = 2
A, B, C, D = (bytes([letter]) for letter in range(1, 5))
OTHER = b"\x63"


def tokens_of(*letters: bytes) -> np.ndarray:
    return np.array([[letter[0]] * SIZE for letter in letters], dtype=np.int32)


def index_of(num_blocks: int = 16) -> PrefixIndex:
    return PrefixIndex(num_blocks, SIZE)


def publish(
    index: PrefixIndex, prefix: Prefix, keys: Sequence[bytes], blocks: list[int], *tokens: bytes
) -> tuple[Prefix, list[int]]:
    """Each key stands for itself as tokens unless others are given."""
    answer = index.publish(prefix, keys, tokens_of(*(tokens or keys)), blocks)
    index.check()
    return answer


def path(index: PrefixIndex, keys: Sequence[bytes], blocks: list[int], salt: str = "") -> Prefix:
    """Publish a sequence from its start; returns the prefix that is its end."""
    end, displaced = publish(index, index.root(salt), keys, blocks)
    assert displaced == []
    return end


def match(
    index: PrefixIndex, keys: Sequence[bytes], *tokens: bytes, after: Prefix | None = None
) -> list[int]:
    prefix = index.root("") if after is None else after
    return index.match(prefix, keys, tokens_of(*(tokens or keys))).tolist()


def remove(index: PrefixIndex, *blocks: int) -> None:
    index.remove(np.array(blocks, dtype=np.int32))
    index.check()


class Heard:
    """Remembers what the index announced."""

    def __init__(self) -> None:
        self.events: list[tuple[str, list[bytes] | list[int]]] = []

    def on_published(self, keys: Sequence[bytes]) -> None:
        self.events.append(("published", list(keys)))

    def on_unpublished(self, blocks: np.ndarray) -> None:
        self.events.append(("unpublished", blocks.tolist()))


def test_a_published_sequence_is_found_from_its_start_as_far_as_it_goes():
    index = index_of()
    path(index, [A, B, C], [4, 2, 7])

    assert match(index, [A, B, C]) == [4, 2, 7]
    assert match(index, [A, B]) == [4, 2]
    assert match(index, [A, B, C, D]) == [4, 2, 7]
    assert match(index, [B, C]) == []
    assert match(index, []) == []
    assert len(index) == 3


def test_a_sequence_may_be_published_and_matched_in_parts():
    index = index_of()
    end = path(index, [A], [4])
    end, _ = publish(index, end, [B, C], [2, 7])

    assert match(index, [A, B, C]) == [4, 2, 7]
    middle = index.end(index.root(""), [4, 2])
    assert match(index, [C], after=middle) == [7]
    assert index.end(index.root(""), [4, 2, 7]) == end
    assert index.end(middle, []) == middle


def test_a_key_is_believed_only_with_its_tokens_and_after_its_prefix():
    index = index_of()
    end = path(index, [A, B], [0, 1])

    assert match(index, [A, B], OTHER, B) == []
    assert match(index, [A, B], A, OTHER) == [0]
    assert match(index, [B]) == [], "B was published after A, not at the start"
    assert match(index, [A], after=end) == []


def test_tokens_are_compared_whole():
    index = index_of()
    index.publish(index.root(""), [A], np.array([[1, 2]], dtype=np.int32), [0])

    for ids, found in (([1, 2], [0]), ([1, 3], []), ([3, 2], []), ([2, 1], [])):
        tokens = np.array([ids], dtype=np.int32)
        assert index.match(index.root(""), [A], tokens).tolist() == found


def test_salts_do_not_share():
    index = index_of()
    path(index, [A], [0])

    assert match(index, [A], after=index.root("salt")) == []
    assert index.root("salt") == index.root("salt") != index.root("")


def test_the_first_block_of_some_tokens_stays_the_one_that_is_found():
    index = index_of()
    path(index, [A, B], [0, 1])

    end, displaced = publish(index, index.root(""), [A, B, C], [5, 6, 7])

    assert displaced == []
    assert match(index, [A, B, C]) == [0, 1, 7], "what is new continues what was there"
    assert index.end(index.root(""), [7]) == end
    assert len(index) == 3


def test_what_a_key_meant_before_is_displaced_and_never_found_by_its_old_tokens():
    index = index_of()
    path(index, [A, B], [0, 1])

    _, displaced = publish(index, index.root(""), [A], [5], OTHER)

    assert displaced == [0]
    assert match(index, [A], OTHER) == [5]
    assert match(index, [A, B]) == []
    assert match(index, [A, B], OTHER, B) == [5], "B continues another publication"


def test_one_key_for_everything_lets_nothing_wrong_be_found():
    index = index_of()
    publish(index, index.root(""), [A, A, A], [0, 1, 2], A, B, C)

    assert match(index, [A, A, A], A, B, C) in ([], [0])
    assert match(index, [A], C) == []
    assert len(index) == 1


def test_removed_blocks_and_all_after_them_are_found_no_more():
    index = index_of()
    path(index, [A, B, C], [0, 1, 2])

    remove(index, 1)

    assert match(index, [A, B, C]) == [0]
    assert len(index) == 2


def test_removing_twice_or_what_was_never_published_changes_nothing():
    index = index_of()
    index.watcher = heard = Heard()
    path(index, [A, B], [0, 1])
    remove(index, 0)
    remove(index, 0, 9)
    remove(index)

    assert heard.events == [("published", [A, B]), ("unpublished", [0])]
    assert match(index, [A, B]) == []


def test_what_continued_a_removed_block_does_not_continue_its_successor():
    """The successor holds the same tokens, but the old tail was not published after it."""
    index = index_of()
    path(index, [A, B], [0, 1])
    remove(index, 0)
    path(index, [A], [5])

    assert match(index, [A, B]) == [5]

    _, displaced = publish(index, index.end(index.root(""), [5]), [B], [6])
    assert displaced == [1]
    assert match(index, [A, B]) == [5, 6]


def test_a_prefix_lives_as_long_as_the_publication_that_ends_it():
    index = index_of()
    end = path(index, [A, B], [0, 1])
    assert index.is_alive(index.root(""))
    assert index.is_alive(end)
    remove(index, 0)
    assert index.is_alive(end), "its head is gone, but itself it can be continued"

    remove(index, 1)
    assert not index.is_alive(end)

    path(index, [C], [1])
    assert not index.is_alive(end), "the block means something else now"


def test_a_block_that_is_published_again_leaves_its_old_place():
    index = index_of()
    path(index, [A], [0])

    _, displaced = publish(index, index.root(""), [B], [0])

    assert displaced == [0]
    assert match(index, [A]) == []
    assert match(index, [B]) == [0]


def test_the_watcher_hears_what_becomes_findable_and_what_ceases_to_be():
    index = index_of()
    index.watcher = heard = Heard()
    path(index, [A, B], [0, 1])
    path(index, [A, B, C], [5, 6, 7])  # two of them are findable already
    publish(index, index.root(""), [B], [8])  # in place of another
    remove(index, 0, 7)

    assert heard.events == [
        ("published", [A, B]),
        ("published", [C]),
        ("unpublished", [1]),
        ("published", [B]),
        ("unpublished", [0, 7]),
    ]


def test_runs_of_many_rows_are_entered_together_or_not_at_all():
    index = index_of()
    first, second = path(index, [A], [0]), path(index, [B], [1])
    names = np.array([first.name, second.name, index.root("").name])

    def enter(keys: list[bytes], blocks: list[int]) -> bool:
        tokens = tokens_of(*keys)
        starts = np.array([0, 2, 3])
        done = index.publish_runs(names, starts, keys, tokens, np.array(blocks, dtype=np.int32))
        index.check()
        return done

    assert not enter([C, D, A, b"e"], [2, 3, 4, 5]), "A is there already"
    assert not enter([C, D, C, b"e"], [2, 3, 4, 5]), "two of them are equal"
    assert not enter([C, D, b"e", b"f"], [2, 3, 0, 5]), "block 0 stands for something"
    assert len(index) == 2

    assert enter([C, D, b"e", b"f"], [2, 3, 4, 5])
    assert match(index, [A, C, D]) == [0, 2, 3]
    assert match(index, [B, b"e"]) == [1, 4]
    assert match(index, [b"f"]) == [5]


def test_nothing_is_kept_of_what_was_removed(monkeypatch: pytest.MonkeyPatch):
    """Salts come from clients, so that their number has to be bounded too."""
    monkeypatch.setattr("cadenza.scheduler.prefix_index._MOST_ROOTS", 10)
    index = index_of()
    for salt in range(50):
        path(index, [A, B], [0, 1], salt=str(salt))
        remove(index, 0, 1)

    assert len(index._roots) <= 10
    assert len(index) == len(index._block_of) == 0
    assert not any(index._keys)


def test_a_salt_that_was_forgotten_finds_nothing_old(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("cadenza.scheduler.prefix_index._MOST_ROOTS", 2)
    index = index_of()
    path(index, [A], [0], salt="first")
    for salt in ("second", "third"):
        index.root(salt)

    assert match(index, [A], after=index.root("first")) == []
    _, displaced = publish(index, index.root("first"), [A], [1])
    assert displaced == [0]
    assert match(index, [A], after=index.root("first")) == [1]
