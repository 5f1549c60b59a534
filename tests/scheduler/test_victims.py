"""Just enough victims, judged by what the set holds alone."""

import numpy as np

from cadenza.scheduler.blocks import BlockPool
from cadenza.scheduler.victims import just_enough


def choose(tables: list[np.ndarray], growth: list[int], deficit: int, pool: BlockPool) -> list[int]:
    return just_enough(tables, np.array(growth), deficit, pool.references).tolist()


def test_the_preferred_victim_is_enough():
    pool = BlockPool(6)
    tables = [pool.allocate(2), pool.allocate(2)]

    assert choose(tables, [0, 1], 1, pool) == [0]


def test_a_victim_that_frees_nothing_is_spared_again():
    pool = BlockPool(6)
    shared, own = pool.allocate(1), pool.allocate(2)
    pool.pin(shared.tolist())

    assert choose([shared, own, shared], [0, 0, 0], 2, pool) == [1]


def test_two_holders_of_one_block_free_it_together():
    pool = BlockPool(6)
    shared = pool.allocate(1)
    pool.pin(shared.tolist())

    assert choose([shared, shared], [0, 0], 1, pool) == [0, 1]


def test_the_growth_a_victim_no_longer_needs_counts():
    pool = BlockPool(6)
    shared = pool.allocate(1)
    pool.pin(shared.tolist())

    assert choose([shared, pool.allocate(1)], [1, 1], 1, pool) == [0]
