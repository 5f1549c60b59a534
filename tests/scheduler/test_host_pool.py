"""Host blocks: each in one place, and none written in the step that still reads it."""

import random

import pytest

from cadenza.scheduler.host_pool import HostPool


def test_blocks_are_handed_out_once():
    pool = HostPool(3)

    first, second = pool.take(2), pool.take(1)

    assert sorted([*first, *second]) == [0, 1, 2]
    assert pool.num_free == 0
    pool.check([*first, *second])


def test_a_released_block_is_free_after_the_next_settle_only():
    pool = HostPool(2)
    taken = pool.take(2)
    pool.release(taken[:1])
    assert pool.num_free == 0
    pool.check(taken[1:])

    pool.settle()

    assert pool.num_free == 1
    assert pool.take(1) == taken[:1]


def test_what_was_released_after_a_settle_waits_for_the_next():
    pool = HostPool(2)
    first, second = pool.take(1), pool.take(1)
    pool.release(first)
    pool.settle()
    pool.release(second)

    assert pool.take(1) == first
    assert pool.num_free == 0


def test_more_than_is_free_is_an_error():
    pool = HostPool(2)
    pool.take(1)

    with pytest.raises(AssertionError, match="2 host blocks wanted, 1 free"):
        pool.take(2)


def test_a_pool_may_be_empty():
    pool = HostPool(0)

    assert pool.num_free == 0
    assert pool.take(0) == []
    pool.check([])


@pytest.mark.parametrize("held", [[], [0, 1], [0, 0]])
def test_a_lost_or_doubled_block_is_noticed(held: list[int]):
    pool = HostPool(2)
    pool.take(1)

    with pytest.raises(AssertionError, match="lost or doubled"):
        pool.check(held)


def test_random_use_loses_nothing():
    chance = random.Random(0)
    pool = HostPool(6)
    held: list[int] = []
    for _ in range(500):
        match chance.randrange(3):
            case 0:
                held += pool.take(chance.randint(0, pool.num_free))
            case 1:
                cut = chance.randint(0, len(held))
                pool.release(held[cut:])
                del held[cut:]
            case 2:
                pool.settle()
        pool.check(held)
