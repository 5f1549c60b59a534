"""The block pool: every block in exactly one place, eviction oldest first, keys never stale."""

import random

import numpy as np
import pytest

from cadenza.scheduler.blocks import BlockCounts, BlockPool

SIZE = 2
A, B, C, D = range(4)  # tokens; a block of them is keyed by the path that leads to it


def tokens_of(*path: int) -> np.ndarray:
    return np.array([[token] * SIZE for token in path], dtype=np.int32)


def keys_of(*path: int) -> list[bytes]:
    return [bytes(path[: depth + 1]) for depth in range(len(path))]


def array(blocks: list[int]) -> np.ndarray:
    return np.array(blocks, dtype=np.int32)


def pool_of(num_blocks: int) -> BlockPool:
    return BlockPool(num_blocks, SIZE)


def publish(pool: BlockPool, blocks: np.ndarray, *path: int) -> None:
    root = pool.index.root("")
    pool.publish(root, keys_of(*path), tokens_of(*path), blocks.tolist())


def published(pool: BlockPool, *path: int) -> np.ndarray:
    """New blocks, held once, one after another in a sequence."""
    blocks = pool.allocate(len(path))
    publish(pool, blocks, *path)
    return blocks


def match(pool: BlockPool, *path: int) -> list[int]:
    """The blocks of the longest prefix of `path` that is cached."""
    return pool.index.match(pool.index.root(""), keys_of(*path), tokens_of(*path)).tolist()


def test_a_released_block_without_a_key_is_free_again():
    pool = pool_of(3)
    blocks = pool.allocate(2)
    assert pool.counts == BlockCounts(free=1, cached=0, held=2)

    pool.release(blocks)

    assert pool.counts == BlockCounts(free=3, cached=0, held=0)
    pool.check([])


def test_a_released_block_with_a_key_stays_findable_until_it_is_needed():
    pool = pool_of(2)
    blocks = published(pool, A)
    pool.release(blocks)
    assert match(pool, A) == blocks.tolist()

    pool.allocate(2)

    assert match(pool, A) == []


def test_eviction_takes_the_oldest_release_and_spares_the_rest():
    """Whatever the order of publishing, and though the first has been used again meanwhile."""
    pool = pool_of(4)
    first, second, third = published(pool, A), published(pool, B), published(pool, C)
    for blocks in (first, third, second):
        pool.release(blocks)
    pool.pin(first)
    pool.release(first)

    pool.allocate(2)
    assert match(pool, C) == []
    assert match(pool, B) == second.tolist()

    pool.allocate(1)
    assert match(pool, B) == []
    assert match(pool, A) == first.tolist()


def test_free_blocks_are_taken_before_cached_ones():
    pool = pool_of(3)
    blocks = published(pool, A)
    pool.release(blocks)

    taken = pool.allocate(2)

    assert match(pool, A) == blocks.tolist()
    pool.check([taken])


def test_a_table_is_released_tail_first_so_that_its_head_is_evicted_last():
    pool = pool_of(3)
    blocks = published(pool, A, B, C)
    pool.release(blocks)

    pool.allocate(2)

    assert match(pool, A, B, C) == blocks.tolist()[:1]


def test_tables_released_together_age_one_after_another():
    pool = pool_of(4)
    first, second = published(pool, A, B), published(pool, C, D)
    pool.release(first, second)
    pool.check([])

    pool.allocate(2)

    assert match(pool, A, B) == []
    assert match(pool, C, D) == second.tolist()


def test_tables_that_share_a_block_may_be_released_together():
    """It ages with the last of them, and each of them counts."""
    pool = pool_of(4)
    shared, own = published(pool, A), pool.allocate(1)
    other = published(pool, C)
    pool.pin(shared)
    pool.release(np.concatenate((shared, own)), other, shared)
    assert pool.counts == BlockCounts(free=2, cached=2, held=0)
    pool.check([])

    pool.allocate(3)

    assert match(pool, C) == []
    assert match(pool, A) == shared.tolist()


def test_a_pinned_block_is_not_available():
    pool = pool_of(2)
    blocks = published(pool, A)
    pool.release(blocks)
    assert pool.num_available == 2

    pool.pin(blocks)

    assert pool.num_available == 1
    assert pool.counts == BlockCounts(free=1, cached=0, held=1)
    pool.check([blocks])


def test_a_block_that_was_pinned_ages_anew():
    pool = pool_of(2)
    first, second = published(pool, A), published(pool, B)
    pool.release(first)
    pool.release(second)
    pool.pin(first)
    pool.release(first)

    pool.allocate(1)

    assert match(pool, B) == []
    assert match(pool, A) == first.tolist()


def test_a_shared_block_is_freed_by_its_last_holder_only():
    pool = pool_of(2)
    blocks = published(pool, A)
    pool.pin(blocks)
    pool.release(blocks)
    assert pool.counts.held == 1

    pool.release(blocks)

    assert pool.counts == BlockCounts(free=1, cached=1, held=0)


def test_an_unpublished_block_can_be_shared_too():
    pool = pool_of(2)
    block = pool.allocate(1)
    pool.pin(block)
    pool.release(block)
    pool.check([block])

    pool.release(block)

    assert pool.counts == BlockCounts(free=2, cached=0, held=0)


def test_references_are_a_read_only_view():
    pool = pool_of(2)
    block = pool.allocate(1)
    assert pool.references[block].tolist() == [1]

    with pytest.raises(ValueError, match="read-only"):
        pool.references[0] = 5


def test_releasing_more_often_than_holding_is_an_error():
    pool = pool_of(1)
    blocks = pool.allocate(1)
    pool.release(blocks)

    with pytest.raises(AssertionError, match="more often than held"):
        pool.release(blocks)


def test_more_than_is_available_is_an_error():
    pool = pool_of(2)
    pool.allocate(1)

    with pytest.raises(AssertionError, match="2 blocks wanted, 1 available"):
        pool.allocate(2)


def test_reserved_blocks_are_not_available_and_evict_nothing_before_they_are_taken():
    pool = pool_of(3)
    blocks = published(pool, A, B)
    pool.release(blocks)

    pool.reserve(1)
    pool.reserve(1)
    assert pool.num_available == 1
    assert match(pool, A, B) == blocks.tolist()
    with pytest.raises(AssertionError, match="2 blocks wanted, 1 available"):
        pool.reserve(2)

    taken = pool.allocate_reserved()
    assert len(taken) == 2
    assert pool.num_available == 1
    assert match(pool, A, B) == blocks.tolist()[:1]
    pool.check([taken])
    assert len(pool.allocate_reserved()) == 0


def test_a_forgotten_block_is_not_found_and_becomes_free():
    pool = pool_of(1)
    blocks = published(pool, A)

    pool.distrust(blocks)
    pool.release(blocks)

    assert match(pool, A) == []
    assert pool.counts == BlockCounts(free=1, cached=0, held=0)


def test_a_reset_forgets_held_and_unheld_blocks_and_frees_the_unheld():
    pool = pool_of(4)
    held, unheld = published(pool, A, B), published(pool, C)
    pool.release(unheld)

    pool.reset_cache()

    assert match(pool, A, B) == match(pool, C) == []
    assert pool.counts == BlockCounts(free=2, cached=0, held=2)
    pool.check([held])
    pool.release(held)
    assert pool.counts == BlockCounts(free=4, cached=0, held=0)


def test_an_unheld_block_that_is_in_the_way_of_a_new_publication_is_free_at_once():
    """Two beginnings have one key, and only one of them can be found by it."""
    pool = pool_of(4)
    root = pool.index.root("")
    old, new = pool.allocate(1), pool.allocate(1)
    pool.publish(root, [b"key"], tokens_of(A), old.tolist())
    pool.release(old)
    assert pool.counts == BlockCounts(free=2, cached=1, held=1)

    pool.publish(root, [b"key"], tokens_of(B), new.tolist())

    assert pool.index.match(root, [b"key"], tokens_of(B)).tolist() == new.tolist()
    assert not len(pool.index.match(root, [b"key"], tokens_of(A)))
    assert pool.counts == BlockCounts(free=3, cached=0, held=1)
    pool.check([new])


def test_a_held_block_that_is_in_the_way_is_free_when_it_is_released():
    pool = pool_of(4)
    root = pool.index.root("")
    old, new = pool.allocate(1), pool.allocate(1)
    pool.publish(root, [b"key"], tokens_of(A), old.tolist())

    pool.publish(root, [b"key"], tokens_of(B), new.tolist())
    pool.check([old, new])
    pool.release(old)

    assert pool.counts == BlockCounts(free=3, cached=0, held=1)


def test_what_continued_an_unfindable_block_is_free_at_once():
    """Nobody could find it any more, and it would outlive what can be found."""
    pool = pool_of(5)
    old = published(pool, A, B)
    pool.release(old[1:])
    assert pool.counts == BlockCounts(free=3, cached=1, held=1)

    pool.distrust(old[:1])

    assert pool.counts == BlockCounts(free=4, cached=0, held=1)
    pool.check([old[:1]])
    new = published(pool, A, B)
    pool.release(new)
    pool.allocate(2)
    assert match(pool, A, B) == new.tolist()


def test_what_a_row_publishes_behind_another_row_goes_with_it():
    """It continues that row's blocks; when they are evicted its own could not be found."""
    pool = pool_of(3)
    first = published(pool, A)
    behind = pool.allocate(1)
    prefix = pool.index.end(pool.index.root(""), first)
    pool.publish(prefix, keys_of(A, B)[1:], tokens_of(A, B)[1:], behind.tolist())
    pool.release(first)

    pool.allocate(2)

    assert match(pool, A, B) == []
    assert not pool.index.names[behind].any(), "held, and to be published anew by who holds it"
    pool.release(behind)
    assert pool.counts.cached == 0


def test_rows_of_one_prompt_are_evicted_from_their_tails_and_leave_each_other_whole():
    """The heir of the prompt goes before the branch, as its row ended first."""
    pool = pool_of(6)
    prompt, heir = published(pool, A), pool.allocate(2)
    publish(pool, np.concatenate((prompt, heir)), A, B, B)
    pool.pin(prompt)
    branch = pool.allocate(2)
    publish(pool, np.concatenate((prompt, branch)), A, C, D)
    pool.release(np.concatenate((prompt, heir)))
    pool.release(np.concatenate((prompt, branch)))

    lengths = []
    tables = []
    for _ in range(6):
        tables.append(pool.allocate(1))
        lengths.append((len(match(pool, A, B, B)), len(match(pool, A, C, D))))
        pool.check(tables)

    assert lengths == [(3, 3), (2, 3), (1, 3), (1, 2), (1, 1), (0, 0)]


def test_matched_blocks_that_nobody_holds_are_counted():
    pool = pool_of(4)
    held, released = published(pool, A), published(pool, B)
    pool.release(released)

    assert pool.num_unheld(np.concatenate((held, released))) == 1
    assert pool.num_unheld(array([])) == 0


def test_a_pool_needs_a_block():
    with pytest.raises(ValueError, match="at least one block"):
        pool_of(0)


@pytest.mark.parametrize("seed", range(20))
def test_random_operations_keep_the_pool_whole(seed: int):
    """Recounted from scratch after every operation."""
    chance = random.Random(seed)
    pool = pool_of(8)
    tables: list[np.ndarray] = []

    def path() -> list[int]:
        return [chance.choice((A, B)) for _ in range(chance.randint(1, 3))]

    found = 0
    for _ in range(500):
        hits = match(pool, *path())
        match chance.choice([0, 0, 1, 1, 2, 2, 2, 3, 3, 4, 5]):
            case 0:
                tables.append(pool.allocate(chance.randint(0, min(3, pool.num_available))))
            case 1 if tables:
                chance.shuffle(tables)
                num = chance.randint(1, len(tables))
                pool.release(*tables[:num])
                del tables[:num]
            case 2:
                table = pool.allocate(min(3, pool.num_available))
                tables.append(table)
                if len(table) == 3:
                    publish(pool, table, *chance.choices((A, B), k=3))
            case 3:
                found += len(hits)
                pool.pin(array(hits))
                tables.append(array(hits))
            case 4 if tables:
                pool.distrust(chance.choice(tables))
            case 5 if chance.random() < 0.2:
                pool.reset_cache()
        pool.check(tables)
        assert sum(pool.counts) == 8
    assert found > 5, "the case no longer finds anything"


@pytest.mark.parametrize(("ahead", "share", "evicted"), [(1024, 128, 1), (1024, 2, 4), (3, 2, 3)])
def test_a_large_cache_is_evicted_from_in_runs(
    monkeypatch: pytest.MonkeyPatch, ahead: int, share: int, evicted: int
):
    monkeypatch.setattr("cadenza.scheduler.blocks.EVICTED_AHEAD", ahead)
    monkeypatch.setattr("cadenza.scheduler.blocks.SHARE_AHEAD", share)
    pool = pool_of(8)
    for first in range(8):
        pool.release(published(pool, first))

    pool.allocate(1)

    assert pool.counts == BlockCounts(free=evicted - 1, cached=8 - evicted, held=1)
    pool.allocate(5)
    assert pool.num_available == 2


def cached_pool(num_blocks: int, *paths: tuple[int, ...]) -> tuple[BlockPool, list[np.ndarray]]:
    """A pool in which these sequences are cached, let go of one after another."""
    pool = pool_of(num_blocks)
    blocks = [published(pool, *path) for path in paths]
    for each in blocks:
        pool.release(each)
    return pool, blocks


def test_the_lowest_in_rank_are_evicted_first():
    pool, (a, b, c) = cached_pool(4, (A,), (B,), (C,))
    pool.rank_evictions(lambda blocks: np.where(blocks == b[0], 0.0, np.inf))

    pool.allocate(2)
    assert [match(pool, each) for each in (A, B, C)] == [[a[0]], [], [c[0]]]
    pool.allocate(1)  # of equals the oldest
    assert [match(pool, each) for each in (A, B, C)] == [[], [], [c[0]]]


def test_blocks_are_ranked_once_until_it_is_asked_for_again():
    asked: list[list[int]] = []

    def rank(blocks: np.ndarray) -> np.ndarray:
        asked.append(blocks.tolist())
        return -np.arange(len(blocks))

    pool, (a, b, c, d) = cached_pool(5, (A,), (B,), (C,), (D,))
    pool.rank_evictions(rank)
    pool.allocate(1)
    assert asked == []  # one was free
    pool.allocate(1)
    pool.pin(c)  # ranked, and held before its turn comes
    late = pool.allocate(1)
    assert asked == [[*a, *b, *c, *d]]
    assert [match(pool, each) for each in (A, B, C, D)] == [[a[0]], [], [c[0]], []]

    pool.release(c)
    publish(pool, late, D)
    pool.release(late)
    pool.allocate(3)  # what was let go of later comes after all that were ranked
    assert len(asked) == 1
    pool.check([array([*range(5)])])


def test_what_was_let_go_of_after_the_ranking_is_evicted_last():
    pool, _ = cached_pool(4, (A,), (B,))
    held = published(pool, C, D)
    pool.rank_evictions(lambda blocks: np.zeros(len(blocks)))
    pool.allocate(1)
    pool.release(held)
    pool.allocate(1)

    assert match(pool, C, D) == held.tolist()
    pool.allocate(1)
    assert match(pool, C, D) == held[:1].tolist()


def test_with_a_head_goes_what_continues_it():
    pool, (blocks, other) = cached_pool(4, (A, B, C), (D,))
    pool.rank_evictions(lambda cached: np.where(cached == blocks[0], 0.0, 1.0))
    pool.allocate(1)

    assert pool.counts == BlockCounts(free=2, cached=1, held=1)
    assert match(pool, D) == other.tolist()
    assert match(pool, A, B, C) == []


def test_where_all_have_to_go_nobody_is_asked():
    pool, _ = cached_pool(2, (A,), (B,))
    pool.rank_evictions(lambda blocks: pytest.fail("asked"))
    pool.reset_cache()

    assert pool.counts == BlockCounts(free=2, cached=0, held=0)
    pool.rank_evictions(None)
    published(pool, A, B)


def test_a_ranked_pool_agrees_with_a_slow_one():
    """Random lives under an order that changes: each block is in one place, whoever goes first."""
    for seed in range(20):
        chance = random.Random(seed)
        pool, tables = pool_of(12), list[np.ndarray]()
        for _ in range(80):
            if chance.random() < 0.3:
                factor = chance.randrange(1, 12)
                pool.rank_evictions(lambda blocks, factor=factor: blocks * factor % 5)
            num = chance.randrange(1, 4)
            if tables and (chance.random() < 0.5 or num > pool.num_available):
                pool.release(tables.pop(chance.randrange(len(tables))))
            elif num <= pool.num_available:
                tables.append(published(pool, *(chance.randrange(3) for _ in range(num))))
            pool.check(tables)
