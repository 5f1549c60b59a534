"""Who has to leave first, and just enough of them, judged by what the set holds alone."""

import numpy as np
import pytest

from cadenza.scheduler.blocks import BlockPool
from cadenza.scheduler.request import Arrival
from cadenza.scheduler.states import State
from cadenza.scheduler.table import RequestTable, Rows
from cadenza.scheduler.victims import Shortage, eviction_order, just_enough, protection


def choose(
    tables: list[np.ndarray],
    growth: list[int],
    deficit: int,
    pool: BlockPool,
    *,
    seats: list[int] | None = None,
    lacking_seats: int = 0,
) -> list[int]:
    shortage = Shortage(deficit, lacking_seats)
    held = seats or [1] * len(tables)
    return just_enough(tables, np.array(growth), held, shortage, pool.references).tolist()


def test_the_preferred_victim_is_enough():
    pool = BlockPool(6, 4)
    tables = [pool.allocate(2), pool.allocate(2)]

    assert choose(tables, [0, 1], 1, pool) == [0]


def test_a_victim_that_frees_nothing_is_spared_again():
    pool = BlockPool(6, 4)
    shared, own = pool.allocate(1), pool.allocate(2)
    pool.pin(shared)

    assert choose([shared, own, shared], [0, 0, 0], 2, pool) == [1]


def test_two_holders_of_one_block_free_it_together():
    pool = BlockPool(6, 4)
    shared = pool.allocate(1)
    pool.pin(shared)

    assert choose([shared, shared], [0, 0], 1, pool) == [0, 1]


def test_the_growth_a_victim_no_longer_needs_counts():
    pool = BlockPool(6, 4)
    shared = pool.allocate(1)
    pool.pin(shared)

    assert choose([shared, pool.allocate(1)], [1, 1], 1, pool) == [0]


def test_nobody_leaves_if_not_even_all_of_them_suffice():
    pool = BlockPool(6, 4)

    assert choose([pool.allocate(2), pool.allocate(2)], [0, 0], 5, pool) == []


def test_seats_are_gained_with_blocks_and_both_have_to_suffice():
    """The first has blocks but one seat; the second has what is still missing."""
    pool = BlockPool(6, 4)
    tables = [pool.allocate(3), pool.allocate(1)]

    assert choose(tables, [0, 0], 2, pool, seats=[1, 2], lacking_seats=1) == [0]
    assert choose(tables, [0, 0], 0, pool, seats=[1, 2], lacking_seats=2) == [1]
    assert choose(tables, [0, 0], 2, pool, seats=[1, 2], lacking_seats=3) == [0, 1]
    assert choose(tables, [0, 0], 0, pool, seats=[1, 2], lacking_seats=4) == []


def test_a_shortage_is_none_only_without_lack_of_either_kind():
    assert Shortage(0, 0).is_none
    assert Shortage(-3, -1).is_none
    assert not Shortage(1, -1).is_none
    assert not Shortage(-1, 1).is_none


def seated_table(num: int) -> tuple[RequestTable, Rows]:
    """Rows 0 to `num` - 1 in order of arrival, of admission, and of their numbers."""
    table = RequestTable(num_seats=num, max_model_len=16, block_size=4)
    for request in range(num):
        prompt = np.array([request], dtype=np.int32)
        row = table.add(Arrival(request=request, prompt=prompt, max_tokens=8), 0.0)
        table.take_seats(table.cold(row))
        block = np.array([request], dtype=np.int32)
        table.seat_rows(np.array([row]), [block], np.array([0]))
    return table, table.seated()


def order(table: RequestTable, rows: Rows, scores: list[float], *, host_is_full: bool = True):
    ranks = protection(table, rows, max_preemptions=2, host_is_full=host_is_full)
    return table.request[rows[eviction_order(table, rows, ranks, np.array(scores))]].tolist()


def test_protections_are_waived_parked_first_then_ordinary_capped_pinned_and_oldest():
    """The scores would have it the other way round."""
    table, rows = seated_table(6)
    table.preemptions[3] = 2
    table.pinned_until[2] = 1
    table.move(5, State.PARKED)
    table.move(4, State.PARKED)

    assert order(table, rows, [0, 5, 1, 2, 9, 8]) == [5, 4, 1, 3, 2, 0]


def test_scores_rank_equals_and_ties_take_the_newest_admission():
    table, rows = seated_table(5)

    assert order(table, rows, [0, 7, 3, 7, 7]) == [2, 4, 3, 1, 0]


def test_a_pin_ends_with_the_tokens_it_was_for():
    table, rows = seated_table(3)
    table.pinned_until[2] = 1
    assert order(table, rows, [0, 0, 0]) == [1, 2, 0]

    table.generated_tokens[2] = 1

    assert order(table, rows, [0, 0, 0]) == [2, 1, 0]


@pytest.mark.parametrize(
    ("may_swap", "host_is_full", "expected"),
    [(True, False, [2, 1, 0]), (True, True, [1, 2, 0]), (False, False, [1, 2, 0])],
)
def test_who_may_not_be_recomputed_is_spared_where_a_swap_is_not_possible(
    may_swap: bool, host_is_full: bool, expected: list[int]
):
    table, rows = seated_table(3)
    table.may_recompute[2] = False
    table.may_swap[2] = may_swap

    assert order(table, rows, [0, 0, 0], host_is_full=host_is_full) == expected


def test_the_oldest_that_runs_is_last_not_the_oldest_that_is_parked():
    table, rows = seated_table(3)
    table.move(0, State.PARKED)

    assert order(table, rows, [5, 0, 1]) == [0, 2, 1]
