"""The block pool: every block in exactly one place, eviction oldest first, keys never stale."""

import random

import numpy as np
import pytest

from cadenza.scheduler.blocks import BlockCounts, BlockPool

A, B, C, D = (bytes([letter]) * 32 for letter in range(4))


def published(pool: BlockPool, *keys: bytes) -> np.ndarray:
    """New blocks, held once, one below the other in the prefix index."""
    blocks = pool.allocate(len(keys))
    assert pool.index.publish(pool.index.root(""), keys, b"".join(keys), blocks.tolist())
    return blocks


def match(pool: BlockPool, *keys: bytes) -> list[int]:
    """The blocks of the longest prefix of `keys` that is cached."""
    node = pool.index.root("")
    for key in keys:
        child = pool.index.child(node, key, key)
        if child is None or child.block is None:
            break
        node = child
    return pool.index.blocks(node)


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
    assert match(pool, A) == blocks.tolist()

    pool.allocate(2)

    assert match(pool, A) == []


def test_eviction_takes_the_oldest_release_and_spares_the_rest():
    """Whatever the order of publishing, and though the first has been used again meanwhile."""
    pool = BlockPool(4)
    first, second, third = published(pool, A), published(pool, B), published(pool, C)
    for blocks in (first, third, second):
        pool.release(blocks)
    pool.pin(first.tolist())
    pool.release(first)

    pool.allocate(2)
    assert match(pool, C) == []
    assert match(pool, B) == second.tolist()

    pool.allocate(1)
    assert match(pool, B) == []
    assert match(pool, A) == first.tolist()


def test_free_blocks_are_taken_before_cached_ones():
    pool = BlockPool(3)
    blocks = published(pool, A)
    pool.release(blocks)

    taken = pool.allocate(2)

    assert match(pool, A) == blocks.tolist()
    pool.check([taken])


def test_a_table_is_released_tail_first_so_that_its_head_is_evicted_last():
    pool = BlockPool(3)
    blocks = published(pool, A, B, C)
    pool.release(blocks)

    pool.allocate(2)

    assert match(pool, A, B, C) == blocks.tolist()[:1]


def test_a_pinned_block_is_not_available():
    pool = BlockPool(2)
    blocks = published(pool, A)
    pool.release(blocks)
    assert pool.num_available == 2

    pool.pin(blocks.tolist())

    assert pool.num_available == 1
    assert pool.counts == BlockCounts(free=1, cached=0, held=1)
    pool.check([blocks])


def test_a_shared_block_is_freed_by_its_last_holder_only():
    pool = BlockPool(2)
    blocks = published(pool, A)
    pool.pin(blocks.tolist())
    pool.release(blocks)
    assert pool.counts.held == 1

    pool.release(blocks)

    assert pool.counts == BlockCounts(free=1, cached=1, held=0)


def test_an_unpublished_block_can_be_shared_too():
    pool = BlockPool(2)
    block = pool.allocate(1)
    pool.pin(block.tolist())
    pool.release(block)
    pool.check([block])

    pool.release(block)

    assert pool.counts == BlockCounts(free=2, cached=0, held=0)


def test_references_are_a_read_only_view():
    pool = BlockPool(2)
    block = pool.allocate(1)
    assert pool.references[block].tolist() == [1]

    with pytest.raises(ValueError, match="read-only"):
        pool.references[0] = 5


def test_releasing_more_often_than_holding_is_an_error():
    pool = BlockPool(1)
    blocks = pool.allocate(1)
    pool.release(blocks)

    with pytest.raises(AssertionError, match="more often than held"):
        pool.release(blocks)


def test_more_than_is_available_is_an_error():
    pool = BlockPool(2)
    pool.allocate(1)

    with pytest.raises(AssertionError, match="2 blocks wanted, 1 available"):
        pool.allocate(2)


def test_a_forgotten_block_is_not_found_and_becomes_free():
    pool = BlockPool(1)
    blocks = published(pool, A)

    pool.forget(blocks)
    pool.release(blocks)

    assert match(pool, A) == []
    assert pool.counts == BlockCounts(free=1, cached=0, held=0)


def test_a_reset_forgets_held_and_unheld_blocks_and_frees_the_unheld():
    pool = BlockPool(4)
    held, unheld = published(pool, A, B), published(pool, C)
    pool.release(unheld)

    pool.reset_cache()

    assert match(pool, A, B) == match(pool, C) == []
    assert pool.counts == BlockCounts(free=2, cached=0, held=2)
    pool.check([held])
    pool.release(held)
    assert pool.counts == BlockCounts(free=4, cached=0, held=0)


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
    parents = {key: keys[i // 3 - 1] if i >= 3 else None for i, key in enumerate(keys)}
    nodes = {}
    for _ in range(500):
        match chance.randrange(6):
            case 0:
                tables.append(pool.allocate(chance.randint(0, min(3, pool.num_available))))
            case 1 if tables:
                pool.release(tables.pop(chance.randrange(len(tables))))
            case 2 if tables and len(table := chance.choice(tables)):
                key, block = chance.choice(keys), int(chance.choice(table.tolist()))
                parent = nodes.get(parents[key], pool.index.root(""))
                if parents[key] in (None, parent.key) and block not in pool.index:
                    nodes[key] = pool.index.publish(parent, [key], key, [block])
                    assert nodes[key] is not None
            case 3:
                hits = [node.block for node in nodes.values() if node.block is not None]
                hits = chance.sample(hits, min(2, len(hits)))
                pool.pin(hits)
                tables.append(np.array(hits, dtype=np.int32))
            case 4 if tables:
                pool.forget(chance.choice(tables))
            case 5 if chance.random() < 0.1:
                pool.reset_cache()
        pool.check(tables)
        assert sum(pool.counts) == 8
