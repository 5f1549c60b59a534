"""The prefix index: it never shows what was not published, nor under a key what another means."""

import random
from collections.abc import Callable, Sequence

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


Run = tuple[Prefix, Sequence[bytes], list[int]]


def publish_runs(index: PrefixIndex, *runs: Run, key_of: Callable[[int], bytes]) -> list[bool]:
    """Each key stands for itself as tokens; returns for which of the runs it was done."""
    prefixes, keys, blocks = zip(*runs, strict=True)
    ends = np.cumsum([len(each) for each in blocks])
    done = index.publish_runs(
        np.array([prefix.block for prefix in prefixes], dtype=np.int32),
        np.array([prefix.name for prefix in prefixes]),
        ends - [len(each) for each in blocks],
        tokens_of(*(key for each in keys for key in each)),
        np.array([block for each in blocks for block in each], dtype=np.int32),
        key_of,
    )
    index.check()
    return done.tolist()


def enter(index: PrefixIndex, *runs: Run) -> list[int]:
    """Publish runs that have nothing in their way; returns those whose keys were asked for."""
    asked: list[int] = []

    def key_of(run: int) -> bytes:
        asked.append(run)
        return runs[run][1][0]

    assert publish_runs(index, *runs, key_of=key_of) == [True] * len(runs)
    return asked


def refused(index: PrefixIndex, *runs: Run) -> list[int]:
    """Publish runs; returns those for which it was not done."""
    done = publish_runs(index, *runs, key_of=lambda run: runs[run][1][0])
    return [run for run, each in enumerate(done) if not each]


def family(index: PrefixIndex) -> Prefix:
    """A, continued by the heir B, 1, and by the branches C, 2, and D, 3; returns the end of A."""
    end = path(index, [A], [0])
    for key, block in ((B, 1), (C, 2), (D, 3)):
        publish(index, end, [key], [block])
    return end


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

    assert displaced == [0, 1], "with what continued it"
    assert match(index, [A], OTHER) == [5]
    assert match(index, [A, B]) == []
    assert match(index, [A, B], OTHER, B) == [5], "B continued another publication"


def test_one_key_for_everything_lets_nothing_wrong_be_found():
    index = index_of()
    end, _ = publish(index, index.root(""), [A, A, A], [0, 1, 2], A, B, C)

    assert match(index, [A, A, A], A, B, C) == [0, 1, 2]
    assert match(index, [A], C) == match(index, [A, A], B, C) == []
    assert match(index, [A, A], A, C) == [0]

    middle = index.end(end, [0])
    publish(index, middle, [A], [3], C)
    _, displaced = publish(index, middle, [A, A], [4, 5], D, B)
    assert displaced == [3]
    assert match(index, [A, A, A], A, D, B) == [0, 4, 5]
    assert match(index, [A, A, A], A, C, B) == [0]
    assert match(index, [A, A, A], A, B, C) == [0, 1, 2]


def test_of_two_continuations_with_one_key_the_later_is_not_entered_among_the_runs():
    index = index_of()
    end = path(index, [A], [0])
    publish(index, end, [B, C], [1, 2], B, C)
    publish(index, end, [A], [3], D)

    assert publish_runs(index, (end, [C], [4]), key_of=lambda _: A) == [False]

    assert match(index, [A, A], A, C) == [0]
    assert match(index, [A, A], A, D) == [0, 3]
    assert index.publish(end, [A], tokens_of(C), [4])[1] == [3]
    index.check()


def test_removed_blocks_and_all_after_them_are_found_no_more():
    index = index_of()
    path(index, [A, B, C], [0, 1, 2])

    remove(index, 1)

    assert match(index, [A, B, C]) == [0]
    assert len(index) == 1


def test_it_is_known_which_blocks_others_continue():
    index = index_of()
    head = path(index, [A, B], [3, 4])
    assert index.continued(np.array([4, 3])).tolist() == [False, True]

    for block, letter in ((5, C), (6, D)):  # a link, and a branch
        publish(index, head, [letter], [block])
    assert index.continued(np.array([3, 4, 5, 6])).tolist() == [True, True, False, False]
    remove(index, 5)
    assert index.continued(np.array([3, 4, 6])).tolist() == [True, True, False]
    remove(index, 6)
    assert index.continued(np.array([3, 4])).tolist() == [True, False]
    assert index.continued(np.array([], dtype=np.int64)).tolist() == []


def test_removing_twice_or_what_was_never_published_changes_nothing():
    index = index_of()
    index.watcher = heard = Heard()
    path(index, [A, B], [0, 1])
    remove(index, 0)
    remove(index, 0, 9)
    remove(index)

    assert heard.events == [("published", [A]), ("unpublished", [0, 1])]
    assert match(index, [A, B]) == []


@pytest.mark.parametrize("siblings", [[], [C], [C, D]])
def test_what_continued_a_removed_block_does_not_continue_its_successor(siblings: list[bytes]):
    """The successor holds the same tokens, but the old tails were not published after it."""
    index = index_of()
    end = path(index, [A, B], [0, 1])
    middle = index.end(end, [0])
    for block, key in enumerate(siblings, start=2):
        publish(index, middle, [key], [block])
    remove(index, 0)
    successor = path(index, [A], [5])
    assert [match(index, [A, key]) for key in (B, C, D)] == [[5]] * 3
    assert len(index) == 1, "nothing is published in vain"

    end, displaced = publish(index, successor, [B], [6])

    assert displaced == []
    assert match(index, [A, B]) == [5, 6]
    remove(index, 1, *range(2, 2 + len(siblings)))
    assert match(index, [A, B]) == [5, 6]
    assert index.is_alive(end)


def test_what_continued_a_removed_block_does_not_continue_what_the_block_holds_next():
    index = index_of()
    path(index, [A, B], [0, 1])
    publish(index, index.end(index.root(""), [0]), [C], [2])
    remove(index, 0)

    end = path(index, [A], [0])

    assert match(index, [A, B]) == match(index, [A, C]) == [0]
    publish(index, end, [C], [3])
    assert match(index, [A, C]) == [0, 3]
    remove(index, 1, 2)
    assert match(index, [A, C]) == [0, 3]


def test_a_prefix_lives_as_long_as_the_publication_that_ends_it():
    index = index_of()
    end = path(index, [A, B], [0, 1])
    assert index.is_alive(index.root(""))
    assert index.is_alive(end)
    remove(index, 0)
    assert not index.is_alive(end), "its head is gone, so that nobody could find what follows"

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
    """Of a run its first block, as the others are found behind it."""
    index = index_of()
    index.watcher = heard = Heard()
    path(index, [A, B], [0, 1])
    path(index, [A, B, C], [5, 6, 7])  # two of them are findable already
    publish(index, index.root(""), [A], [8], D)  # in place of another, and what continued that
    remove(index, 1, 7)

    assert heard.events == [
        ("published", [A]),
        ("published", [C]),
        ("unpublished", [0, 1, 7]),
        ("published", [A]),
    ]


def test_runs_of_many_rows_are_entered_together():
    index = index_of()
    first, second = path(index, [A], [0]), path(index, [B], [1])

    enter(
        index,
        (first, [C, D], [2, 3]),
        (second, [C], [4]),
        (index.root(""), [D, D, D], [5, 6, 7]),
        (index.root("salt"), [D], [8]),
    )

    assert match(index, [A, C, D]) == [0, 2, 3]
    assert match(index, [B, C, D]) == [1, 4]
    assert match(index, [D, D, D, D]) == [5, 6, 7]
    assert match(index, [D, D], after=index.root("salt")) == [8]
    assert len(index) == 9


def test_runs_with_something_in_their_way_are_left_out_and_the_others_entered():
    index = index_of()
    first, second = path(index, [A], [0]), path(index, [B, C], [1, 2])
    gone = path(index, [D], [3])
    remove(index, 3)
    path(index, [C], [3])

    runs = [
        (index.root(""), [A, D], [4, 5]),  # the branch A is there already
        (first, [C, D], [6, 7]),
        (index.end(second, [1]), [C, D], [8, 9]),  # the heir C is there already
        (gone, [A], [10]),  # block 3 ends another prefix now
        (second, [D], [11]),
    ]
    assert refused(index, *runs) == [0, 2, 3]

    assert match(index, [A, C, D]) == [0, 6, 7]
    assert match(index, [B, C, D]) == [1, 2, 11]
    assert match(index, [A, D]) == [0]
    assert match(index, [C, A]) == [3]
    assert len(index) == 4 + 3


@pytest.mark.parametrize("block", [-1, 0])
def test_of_runs_that_begin_alike_the_first_is_entered_and_the_others_are_left_out(block: int):
    """Whether they continue a block, or begin a prefix."""
    index = index_of()
    prefix = path(index, [A], [0]) if block == 0 else index.root("")

    runs = [(prefix, [B, C], [1, 2]), (prefix, [B, C], [3, 4]), (prefix, [B], [5])]
    assert refused(index, *runs) == [1, 2]

    for run in runs[1:]:
        assert publish(index, *run)[1] == []
    assert match(index, [B, C, D], after=prefix) == [1, 2]
    assert len(index) == 2 + (block == 0)


def test_runs_that_part_at_a_block_find_each_its_place_sooner_or_later():
    """Those that are left out at first too."""
    index = index_of()
    end = path(index, [A], [0])
    runs = [(end, [B, C], [1, 2]), (end, [D], [3]), (end, [C], [4])]

    late = refused(index, *runs)
    for run in late:
        assert publish(index, *runs[run])[1] == []

    assert 0 not in late
    assert match(index, [A, B, C]) == [0, 1, 2]
    assert match(index, [A, D]) == [0, 3]
    assert match(index, [A, C]) == [0, 4]


def test_no_run_may_be_entered():
    index = index_of()
    end = path(index, [A, B], [0, 1])

    assert refused(index, (index.root(""), [A, C], [2, 3]), (index.end(end, [0]), [B], [4])) == [
        0,
        1,
    ]

    assert len(index) == 2
    assert match(index, [A, C]) == [0]


def test_a_second_continuation_is_a_branch_and_found_by_its_key():
    index = index_of()
    family(index)

    for key, block in ((B, 1), (C, 2), (D, 3)):
        assert match(index, [A, key, A]) == [0, block]
    assert match(index, [A, OTHER], A, C) == [0], "a branch is found by its key alone"
    assert match(index, [A, OTHER], A, B) == [0, 1], "and the heir by its tokens alone"
    assert match(index, [A, C], A, OTHER) == [0]


def test_a_path_may_change_from_heirs_to_branches_and_back():
    index = index_of()
    path(index, [A, A, A, A, A], [0, 1, 2, 3, 4])
    path(index, [A, A, B, B, A], [9, 9, 5, 6, 7])
    path(index, [A, A, B, C, A, A], [9, 9, 9, 8, 10, 11])

    assert match(index, [A, A, A, A, A]) == [0, 1, 2, 3, 4]
    assert match(index, [A, A, B, B, A, A]) == [0, 1, 5, 6, 7]
    assert match(index, [A, A, B, C, A, A]) == [0, 1, 5, 8, 10, 11]
    assert match(index, [A, A, B, C, B]) == [0, 1, 5, 8]
    assert match(index, [A, A, C]) == [0, 1]


def test_what_goes_on_from_a_run_that_ended_is_no_heir_of_it_before_it_is_published():
    """The last block of a run was in the middle of another one before."""
    index = index_of()
    path(index, [A, B, C], [0, 1, 2])
    remove(index, 0, 1, 2)

    end = path(index, [A, B], [0, 1])
    path(index, [B, C], [2, 3])
    enter(index, (index.root(""), [C], [4]), (index.root(""), [D], [5]))

    assert match(index, [A, B, C]) == [0, 1]
    assert match(index, [C, D]) == [4]
    assert enter(index, (end, [C], [6])) == []
    assert match(index, [A, B, C]) == [0, 1, 6]


def test_an_evicted_heir_leaves_the_branches_where_they_are():
    index = index_of()
    end = family(index)

    remove(index, 1)

    assert match(index, [A, B]) == [0]
    assert match(index, [A, C]) == [0, 2]
    assert match(index, [A, D]) == [0, 3]
    assert refused(index, (end, [C], [4]), (end, [D], [5])) == [0, 1], "they are there already"
    assert publish(index, end, [C, B], [4, 5]) == (index.end(end, [5]), [])
    assert match(index, [A, C, B]) == [0, 2, 5]

    assert enter(index, (end, [A], [6])) == [0], "its key is needed, to see that it is no branch"
    assert match(index, [A, A]) == [0, 6]
    assert match(index, [A, D]) == [0, 3]


def test_where_heir_and_branches_are_gone_others_take_their_places():
    index = index_of()
    end = family(index)
    remove(index, 3)
    assert match(index, [A, C]) == [0, 2]
    assert match(index, [A, D]) == [0]

    remove(index, 2, 1)
    enter(index, (end, [C], [4]))
    enter(index, (end, [B], [5]))

    assert match(index, [A, C]) == [0, 4]
    assert match(index, [A, B]) == [0, 5]
    assert refused(index, (end, [B], [6]), (end, [C], [7])) == [0, 1]
    remove(index, 4)
    assert match(index, [A, B]) == [0, 5]
    assert len(index) == 2


@pytest.mark.parametrize("gone", [(0, 2, 3), (3, 2, 0), (2, 0), (1, 0, 2)])
def test_a_block_has_no_branches_of_its_former_life(gone: tuple[int, ...]):
    """Whether they were evicted with it, before it, or not at all."""
    index = index_of()
    family(index)
    remove(index, *gone)

    end = path(index, [A], [0])

    assert enter(index, (end, [C], [5])) == [], "nothing else continues it"
    remove(index, 1, 2, 3)
    assert match(index, [A, C]) == [0, 5]


def test_keys_are_asked_for_only_where_a_block_begins_a_prefix_or_has_siblings():
    index = index_of()
    first, second = path(index, [A], [0]), path(index, [B], [1])

    runs = [(first, [A], [2]), (index.root(""), [C], [3]), (second, [A], [4])]
    assert enter(index, *runs) == [1]
    assert enter(index, (first, [B], [5])) == enter(index, (first, [C], [6])) == [0]

    ends = [index.end(first, [block]) for block in (2, 4, 5)]
    assert (
        enter(index, *((end, [D, D], [7 + 2 * i, 8 + 2 * i]) for i, end in enumerate(ends))) == []
    )


def test_what_somebody_waits_for_is_announced_with_its_key():
    """Where nobody does, there is nothing to announce, and nothing to hash."""
    index = index_of()
    first, second = path(index, [A], [0]), path(index, [B], [1])
    index.watcher = heard = Heard()
    index.awaited[0] = 1

    assert enter(index, (first, [C, D], [2, 3]), (second, [D], [4])) == [0]
    assert heard.events == [("published", [C])]
    assert match(index, [A, C, D]) == [0, 2, 3]

    more = index.end(second, [4])
    index.awaited[4] = 1
    assert refused(index, (more, [A], [7]), (more, [A], [8])) == [1], "they are the same"
    assert heard.events.pop() == ("published", [A])

    index.awaited[:] = 0
    assert enter(index, (index.end(first, [3]), [A], [5]), (first, [A], [6])) == [1]
    assert heard.events[1:] == [("published", [A])], "a branch is announced at any rate"


def test_a_name_is_used_once():
    """Of publications and of salts, whoever had been there before."""
    index = index_of()
    names: list[int] = []
    for turn in range(5):
        roots = [index.root(f"{salt} {turn}") for salt in "ab"]
        end, _ = publish(index, roots[0], [A, B], [0, 1])
        enter(index, (end, [C], [2]), (roots[1], [A, B], [3, 4]))
        names += [*(root.name for root in roots), *index.names[:5].tolist()]
        remove(index, *range(5))

    assert len(set(names)) == len(names) == 5 * 7
    assert 0 not in names


class Twins:
    """An index, and beside it what it has to find, kept as plainly as possible."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.index = index_of(24)
        # What continues what: from (name of this, token) to (name of that, block)
        self.found: dict[tuple[object, int], tuple[object, int]] = {}
        self.refused = self.asked = self.longest = 0

    def walk(self, keys: Sequence[bytes]) -> list[tuple[object, int]]:
        """Name and block of each step along a path, as far as it goes."""
        steps: list[tuple[object, int]] = []
        for key in keys:
            step = self.found.get((steps[-1][0] if steps else None, key[0]))
            if step is None:
                break
            steps.append(step)
        return steps

    def match(self, keys: Sequence[bytes]) -> list[int]:
        blocks = match(self.index, keys)
        assert blocks == [block for _, block in self.walk(keys)]
        self.longest = max(self.longest, len(blocks))
        return blocks

    def random_keys(self) -> list[bytes]:
        """Those of a path; each begins with its token."""
        path = [self.chance.randint(1, 2) for _ in range(self.chance.randint(1, 6))]
        return [bytes(path[end::-1]) for end in range(len(path))]

    def forget_some(self) -> None:
        gone = self.chance.sample(range(24), self.chance.randint(1, 8))
        remove(self.index, *gone)
        self.found = {at: step for at, step in self.found.items() if step[1] not in gone}

    def publish_some(self, unused: list[int]) -> None:
        """Runs of up to three blocks, each from anywhere along a path; two may be the same."""
        paths: list[list[bytes]] = []
        runs: list[Run] = []
        for _ in range(self.chance.randint(1, 4)):
            keys = self.random_keys()
            found = self.match(keys)[: self.chance.randint(0, len(keys) - 1)]
            more = keys[len(found) : len(found) + 3]
            prefix = self.index.end(self.index.root(""), found)
            runs.append((prefix, more, [unused.pop() for _ in more]))
            paths.append(keys[: len(found) + len(more)])

        def key_of(run: int) -> bytes:
            self.asked += 1
            return runs[run][1][0]

        done = publish_runs(self.index, *runs, key_of=key_of)
        names: set[int] = set()
        for keys, run, did in zip(paths, runs, done, strict=True):
            is_new = len(self.walk(keys)) == len(keys) - len(run[1])
            assert did <= is_new
            assert did == is_new or run[0].name in names, "only siblings may have to wait"
            names.add(run[0].name)
            if did:
                self.add(keys, run)
        for keys, run, did in zip(paths, runs, done, strict=True):
            if not did:
                self.refused += 1
                assert publish(self.index, *run)[1] == []
                self.add(keys, run)

    def add(self, keys: Sequence[bytes], run: Run) -> None:
        """What of the run is not there yet."""
        steps = self.walk(keys)
        name = steps[-1][0] if steps else None
        num = len(keys) - len(steps)
        for key, block in zip(keys[-num:], run[2][-num:], strict=True) if num else ():
            step = self.found[name, key[0]] = object(), block
            name = step[0]


@pytest.mark.parametrize("seed", range(6))
def test_random_runs_and_evictions_find_what_is_there_and_nothing_else(seed: int):
    chance = random.Random(seed)
    twins = Twins(chance)
    for _ in range(300):
        unused = np.flatnonzero(twins.index.names == 0).tolist()
        chance.shuffle(unused)
        if len(unused) < 12 or chance.random() < 0.2:
            twins.forget_some()
        else:
            twins.publish_some(unused)
        twins.match(twins.random_keys())

    assert min(twins.refused, twins.asked) > 20
    assert twins.longest > 3, "the case no longer finds anything"


def test_nothing_is_kept_of_what_was_removed(monkeypatch: pytest.MonkeyPatch):
    """Salts come from clients, so that their number has to be bounded too."""
    monkeypatch.setattr("cadenza.scheduler.prefix_index._MOST_ROOTS", 10)
    index = index_of()
    for salt in range(50):
        end = path(index, [A, B], [0, 1], salt=str(salt))
        publish(index, index.end(end, [0]), [C], [2])
        remove(index, *((0, 1, 2) if salt % 2 else (2, 1, 0)))

    assert len(index._roots) <= 10
    assert len(index) == 0
    assert index._branches == index._places == {}


def test_a_salt_that_was_forgotten_finds_nothing_old(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("cadenza.scheduler.prefix_index._MOST_ROOTS", 2)
    index = index_of()
    path(index, [A], [0], salt="first")
    for salt in ("second", "third"):
        index.root(salt)

    assert match(index, [A], after=index.root("first")) == []
    _, displaced = publish(index, index.root("first"), [A], [1])
    assert displaced == []
    remove(index, 0)
    assert match(index, [A], after=index.root("first")) == [1]
