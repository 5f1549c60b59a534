"""Waiting rows follow the prefix index: their columns say at any time what a match would find."""

import random

import numpy as np
import pytest

from cadenza.scheduler.blocks import BlockPool
from cadenza.scheduler.prefix import NO_KEYS, extend_keys
from cadenza.scheduler.request import Arrival
from cadenza.scheduler.table import RequestTable
from cadenza.scheduler.waiting_prefixes import WaitingPrefixes

SIZE = 2


class Stage:
    """A table, a pool, and what follows them; blocks are published as if rows had run."""

    def __init__(self) -> None:
        self.pool = BlockPool(32, SIZE)
        self.table = RequestTable(num_seats=1, max_model_len=64, block_size=SIZE)
        self.prefixes = WaitingPrefixes(self.table, self.pool.index)
        self._requests = 0

    def wait(self, *prompt: int, salt: str = "") -> int:
        self._requests += 1
        tokens = np.array(prompt, dtype=np.int32)
        row = self.table.add(
            Arrival(request=self._requests, prompt=tokens, max_tokens=1, cache_salt=salt), 0.0
        )
        self.prefixes.add(row)
        self.prefixes.check()
        return row

    def compute(self, *tokens: int, salt: str = "") -> np.ndarray:
        """Somebody computes these tokens and publishes full blocks; returns them, held once."""
        ids = np.array(tokens[: len(tokens) // SIZE * SIZE], dtype=np.int32)
        keys = extend_keys(NO_KEYS, salt, ids, SIZE, len(ids) // SIZE)
        blocks = self.pool.allocate(len(keys))
        root = self.pool.index.root(salt)
        self.pool.publish(root, keys, ids.reshape(-1, SIZE), blocks.tolist())
        self.prefixes.check()
        return blocks

    def cached(self, *rows: int) -> list[int]:
        return self.table.cached_tokens[list(rows)].tolist()

    def forget(self, block: int) -> None:
        self.pool.index.remove(np.array([block], dtype=np.int32))
        self.prefixes.check()


def test_a_row_finds_at_arrival_what_is_cached_and_leaves_a_token_to_compute():
    stage = Stage()
    stage.compute(1, 2, 3, 4)

    rows = [
        stage.wait(1, 2, 3, 4, 5),
        stage.wait(1, 2, 3, 4),
        stage.wait(1, 2, 3),
        stage.wait(1, 2),
        stage.wait(1, 9, 3, 4, 5),
    ]

    assert stage.cached(*rows) == [4, 2, 2, 0, 0]


def test_a_row_that_waits_follows_what_is_published_meanwhile():
    stage = Stage()
    row, other = stage.wait(1, 2, 3, 4, 5), stage.wait(1, 2, 7, 8, 9)
    assert stage.cached(row, other) == [0, 0]

    stage.compute(1, 2)
    assert stage.cached(row, other) == [2, 2]

    stage.compute(1, 2, 3, 4, 5, 6)
    assert stage.cached(row, other) == [4, 2]


def test_what_is_published_in_one_run_is_found_as_far_as_the_row_goes():
    stage = Stage()
    row = stage.wait(1, 2, 3, 4, 5, 6, 7)
    stage.compute(1, 2)
    assert stage.cached(row) == [2]

    stage.compute(1, 2, 3, 4, 5, 6, 7, 8)

    assert stage.cached(row) == [6]


def test_eviction_takes_the_prefix_back_to_before_the_gap():
    stage = Stage()
    blocks = stage.compute(1, 2, 3, 4, 5, 6)
    short, long = stage.wait(1, 2, 3), stage.wait(1, 2, 3, 4, 5, 6, 7)
    assert stage.cached(short, long) == [2, 6]

    stage.forget(int(blocks[2]))
    assert stage.cached(short, long) == [2, 4]

    stage.forget(int(blocks[0]))
    assert stage.cached(short, long) == [0, 0]


def test_salts_are_followed_apart():
    stage = Stage()
    row, salted = stage.wait(1, 2, 3), stage.wait(1, 2, 3, salt="a")

    stage.compute(1, 2, salt="a")

    assert stage.cached(row, salted) == [0, 2]


def test_equal_next_blocks_have_equal_keys_and_other_ones_do_not():
    stage = Stage()
    rows = [
        stage.wait(1, 2, 3, 4, 5),
        stage.wait(1, 2, 8, 9, 5),
        stage.wait(1, 3, 8, 9, 5),
        stage.wait(1, 2, 3, 4, 5, salt="a"),
        stage.wait(1),
    ]
    keys = stage.table.next_block_key[rows].tolist()
    assert keys[0] == keys[1]
    assert len(set(keys)) == 4
    assert keys[4] == 0, "no whole block is left to find"

    stage.compute(1, 2)

    after = stage.table.next_block_key[rows].tolist()
    assert after[0] != after[1]
    assert after[2:] == keys[2:]


def test_a_row_whose_last_block_was_found_wants_no_more():
    stage = Stage()
    row = stage.wait(1, 2, 3)

    stage.compute(1, 2, 3, 4)

    assert stage.cached(row) == [2]
    assert stage.table.next_block_key[row] == 0


def test_a_row_is_followed_until_it_is_removed():
    stage = Stage()
    row, other = stage.wait(1, 2, 3), stage.wait(1, 2, 3)
    blocks = stage.compute(1, 2)
    assert row in stage.prefixes

    stage.prefixes.remove(np.array([row]))
    stage.prefixes.remove(np.array([row]))

    assert row not in stage.prefixes
    assert stage.cached(row, other) == [0, 2]
    assert stage.table.next_block_key[row] == 0
    stage.forget(int(blocks[0]))
    assert stage.cached(row, other) == [0, 0]


def test_the_blocks_of_the_prefix_are_known():
    stage = Stage()
    blocks = stage.compute(1, 2, 3, 4)

    assert stage.prefixes.found(stage.wait(1, 2, 3, 4, 5)).tolist() == blocks.tolist()
    assert stage.prefixes.found(stage.wait(1, 2, 3)).tolist() == blocks.tolist()[:1]
    assert stage.prefixes.found(stage.wait(9, 9, 9)).tolist() == []


def test_nothing_is_kept_of_rows_that_left():
    stage = Stage()
    rows = [stage.wait(1, 2, 3, 4, 5) for _ in range(3)]
    stage.compute(1, 2)
    stage.prefixes.remove(np.array(rows))

    prefixes = stage.prefixes
    assert prefixes._found == prefixes._ending == prefixes._wanted == {}
    assert not prefixes._passing.any()


@pytest.mark.parametrize("seed", range(5))
def test_random_publishing_and_eviction_never_leaves_a_stale_column(seed: int):
    """`check` matches every row anew after each change."""
    chance = random.Random(seed)
    stage = Stage()
    rows: list[int] = []
    found = 0

    def ids() -> list[int]:
        return [chance.randint(1, 2) for _ in range(chance.randint(1, 9))]

    for _ in range(150):
        match chance.choice([0, 0, 0, 0, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4]):
            case 0:
                rows.append(stage.wait(*ids(), salt=chance.choice(["", "a"])))
            case 1 if rows:
                stage.prefixes.remove(np.array([rows.pop(chance.randrange(len(rows)))]))
            case 2:
                stage.pool.release(stage.compute(*ids(), 1, salt=chance.choice(["", "a"])))
            case 3:
                stage.forget(chance.randrange(32))
            case 4:
                stage.pool.reset_cache()
        stage.prefixes.check()
        stage.pool.index.check()
        found += any(stage.cached(*rows))
    assert found > 30, "the case no longer finds anything"
