"""The block pool: every block in exactly one place, eviction oldest first, keys never stale."""

import random

import numpy as np
import pytest

from cadenza.scheduler.blocks import BlockCounts, BlockPool

A, B, C, D = (bytes([letter]) * 32 for letter in range(4))


def published(pool: BlockPool, *keys: bytes) -> np.ndarray:
    blocks = pool.allocate(len(keys))
    for block, key in zip(blocks.tolist(), keys, strict=True):
        pool.publish(block, key)
    return blocks


def test_a_released_block_without_a_key_is_free_again():
    pool = BlockPool(3)
    blocks = pool.allocate(2)
    assert pool.counts == BlockCounts(free=1, cached=0, held=2)

    pool.release(blocks)

    assert pool.counts == BlockCounts(free=3, cached=0, held=0)
    pool.check([])


def test_a_released_block_with_a_key_stays_findable_until_it_is_needed():
    pool = BlockPool(2)
    blocks = published(pool, A)
    pool.release(blocks)
    assert pool.match([A]) == blocks.tolist()

    pool.allocate(2)

    assert pool.match([A]) == []


def test_eviction_takes_the_oldest_release_and_spares_the_rest():
    pool = BlockPool(3)
    first, second = published(pool, A), published(pool, B)
    pool.release(first)
    pool.release(second)

    pool.allocate(2)

    assert pool.match([A]) == []
    assert pool.match([B]) == second.tolist()


def test_a_table_is_released_tail_first_so_that_its_head_is_evicted_last():
    pool = BlockPool(3)
    pool.release(published(pool, A, B, C))

    pool.allocate(2)

    assert len(pool.match([A, B, C])) == 1


def test_a_pinned_block_is_not_available():
    pool = BlockPool(2)
    blocks = published(pool, A)
    pool.release(blocks)
    assert pool.num_available == 2

    pool.pin(blocks.tolist())

    assert pool.num_available == 1
    pool.check([blocks])


def test_a_shared_block_is_freed_by_its_last_holder_only():
    pool = BlockPool(2)
    blocks = published(pool, A)
    pool.pin(blocks.tolist())
    pool.release(blocks)
    assert pool.counts.held == 1

    pool.release(blocks)

    assert pool.counts == BlockCounts(free=1, cached=1, held=0)


def test_releasing_more_often_than_holding_is_an_error():
    pool = BlockPool(1)
    blocks = pool.allocate(1)
    pool.release(blocks)

    with pytest.raises(AssertionError, match="more often than held"):
        pool.release(blocks)


def test_a_key_names_one_block_and_a_block_has_one_key():
    pool = BlockPool(2)
    first, second = pool.allocate(2).tolist()
    pool.publish(first, A)
    pool.publish(second, A)
    pool.publish(first, B)

    assert pool.match([A]) == [first]
    assert pool.match([B]) == []
    pool.check([np.array([first]), np.array([second])])


def test_match_stops_at_the_first_gap():
    pool = BlockPool(3)
    blocks = published(pool, A, C)

    assert pool.match([A, B, C]) == blocks.tolist()[:1]


def test_a_forgotten_block_is_not_found_and_becomes_free():
    pool = BlockPool(1)
    blocks = published(pool, A)

    pool.forget(blocks)
    pool.release(blocks)

    assert pool.match([A]) == []
    assert pool.counts == BlockCounts(free=1, cached=0, held=0)


def test_matched_blocks_that_nobody_holds_are_counted():
    pool = BlockPool(4)
    held, released = published(pool, A), published(pool, B)
    pool.release(released)

    assert pool.num_unheld([*held.tolist(), *released.tolist()]) == 1
    assert pool.num_unheld([]) == 0


def test_a_pool_needs_a_block():
    with pytest.raises(ValueError, match="at least one block"):
        BlockPool(0)


@pytest.mark.parametrize("seed", range(20))
def test_random_operations_keep_the_pool_whole(seed: int):
    """Recounted from scratch after every operation."""
    chance = random.Random(seed)
    pool = BlockPool(8)
    tables: list[np.ndarray] = []
    keys = [bytes([i]) * 32 for i in range(12)]
    for _ in range(500):
        match chance.randrange(5):
            case 0:
                tables.append(pool.allocate(chance.randint(0, min(3, pool.num_available))))
            case 1 if tables:
                pool.release(tables.pop(chance.randrange(len(tables))))
            case 2 if tables and len(table := chance.choice(tables)):
                pool.publish(int(chance.choice(table.tolist())), chance.choice(keys))
            case 3:
                hits = pool.match(chance.sample(keys, 2))
                pool.pin(hits)
                tables.append(np.array(hits, dtype=np.int32))
            case 4 if tables:
                pool.forget(chance.choice(tables))
        pool.check(tables)
