"""The queue of unheld blocks: oldest first, in runs, and small whatever leaves out of turn."""

import random
from collections import deque

import numpy as np
import pytest

from cadenza.scheduler.eviction_queue import EvictionQueue


def array(*blocks: int) -> np.ndarray:
    return np.array(blocks, dtype=np.int32)


def test_the_oldest_leave_first_within_runs_and_across_them():
    queue = EvictionQueue(8)
    queue.push(array(5, 2))
    queue.push(array())
    queue.push(array(7, 0, 1))

    assert queue.blocks().tolist() == [5, 2, 7, 0, 1]
    assert queue.pop(1).tolist() == [5]
    assert queue.pop(3).tolist() == [2, 7, 0]
    assert queue.num == 1
    assert queue.pop(0).tolist() == []
    assert queue.pop(1).tolist() == [1]
    assert queue.num == 0


def test_what_left_out_of_turn_is_passed_over():
    queue = EvictionQueue(8)
    queue.push(array(0, 1, 2, 3))
    queue.discard(array(0, 2))
    assert queue.has(np.array([1, 2])).tolist() == [True, False]

    assert queue.pop(2).tolist() == [1, 3]


def test_what_comes_back_stands_at_the_end():
    queue = EvictionQueue(8)
    queue.push(array(0, 1, 2))
    queue.discard(array(0))
    queue.push(array(0))

    assert queue.blocks().tolist() == [1, 2, 0]
    assert queue.pop(3).tolist() == [1, 2, 0]


def test_no_more_leave_than_there_are():
    queue = EvictionQueue(8)
    queue.push(array(0))

    with pytest.raises(AssertionError):
        queue.pop(2)


@pytest.mark.parametrize("seed", range(10))
def test_it_is_a_queue_whatever_happens(seed: int):
    """Against a plain list, in which everything is as simple as it is slow."""
    chance = random.Random(seed)
    queue, plain = EvictionQueue(12), []
    for _ in range(600):
        match chance.randrange(3):
            case 0:
                absent = [block for block in range(12) if block not in plain]
                more = chance.sample(absent, chance.randint(0, len(absent)))
                queue.push(array(*more))
                plain += more
            case 1:
                gone = chance.sample(plain, chance.randint(0, len(plain)))
                queue.discard(array(*gone))
                plain = [block for block in plain if block not in gone]
            case 2:
                num = chance.randint(0, len(plain))
                assert queue.pop(num).tolist() == plain[:num]
                del plain[:num]
        assert queue.num == len(plain)
        assert queue.blocks().tolist() == plain
        queued = sum(len(blocks) for blocks, _ in queue._runs)
        assert queued <= 2 * 12, "what left long ago is still queued"


def test_a_run_that_was_mostly_left_out_of_turn_is_looked_through_in_few_rounds():
    queue = EvictionQueue(5000)
    queue.push(np.arange(5000, dtype=np.int32))
    queue.discard(np.arange(4999, dtype=np.int32))
    rounds = 0

    class Counted(deque):  # type: ignore[type-arg]
        def popleft(self):
            nonlocal rounds
            rounds += 1
            return super().popleft()

    queue._runs = Counted(queue._runs)

    assert queue.pop(1).tolist() == [4999]
    assert rounds <= 5
    assert queue.num == 0
