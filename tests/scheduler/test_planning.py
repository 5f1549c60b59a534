"""How a step's token budget is spent."""

import random

import numpy as np
import pytest

from cadenza.scheduler.planning import PlanBuilder
from cadenza.scheduler.prefills import Prefills


def builder(token_budget: int, block_size: int, chunk: int | None = None) -> PlanBuilder:
    return PlanBuilder(
        step_id=1,
        now_s=0.0,
        token_budget=token_budget,
        block_size=block_size,
        prefill_chunk=chunk,
    )


def rows_of(*rows: int) -> np.ndarray:
    return np.array(rows, dtype=np.intp)


def rows_and_counts(plan: PlanBuilder) -> tuple[np.ndarray, np.ndarray]:
    """Of a step without any before it; rows were admitted in the order of their numbers."""
    return plan.rows_and_counts(Prefills(), np.arange(100))


def test_decodes_come_out_of_the_budget_before_prefills():
    plan = builder(10, 4)
    plan.place_running(rows_of(0, 1, 2), rows_of(3), np.array([100]))

    rows, counts = rows_and_counts(plan)

    assert rows.tolist() == [0, 1, 2, 3]
    assert counts.tolist() == [1, 1, 1, 7]


def test_short_prefills_fill_the_budget():
    """Sixty-four rows that miss one token each enter together."""
    plan = builder(64, 16)
    for row in range(64):
        assert plan.has_room_for(1), row
        plan.place_admitted(row, [row], cached=31, remaining=1)

    assert plan.is_full
    assert not plan.has_room_for(1)


def test_long_prefills_leave_room_for_short_ones():
    plan = builder(64, 8)
    num_long = 0
    while plan.has_room_for(1000):
        plan.place_admitted(num_long, [num_long], cached=0, remaining=1000)
        num_long += 1

    assert num_long == 4
    assert plan.has_room_for(3)


def test_one_long_prefill_may_always_enter_an_empty_step():
    plan = builder(8, 8)

    assert plan.has_room_for(1000)


def test_a_row_that_leaves_the_plan_gives_its_tokens_back():
    """A decode gives one, a prefill what it was promised."""
    plan = builder(12, 4)
    plan.place_running(rows_of(0, 1), rows_of(2, 3), np.array([100, 100]))
    assert rows_and_counts(plan)[1].tolist() == [1, 1, 10]
    assert not plan.has_room_for(4)

    plan.withdraw(0)
    assert plan.decodes.tolist() == [1]
    assert plan.tokens_left == 11
    plan.withdraw(2)

    rows, counts = rows_and_counts(plan)
    assert (rows.tolist(), counts.tolist()) == ([1, 3], [1, 11])
    assert plan.has_room_for(4)


def test_a_withdrawn_long_prefill_makes_room_for_another_long_one():
    plan = builder(16, 8)
    plan.place_running(rows_of(), rows_of(0), np.array([100]))
    assert not plan.has_room_for(100)

    plan.withdraw(0)

    assert plan.is_empty
    assert plan.has_room_for(100)


def test_in_a_step_without_prompts_shares_of_earlier_ones_end():
    """Or a row that lost its seat amid its prompt would come back to its old place."""
    prefills, admission = Prefills(), np.arange(3)

    def step(*remaining: tuple[int, int]) -> dict[int, int]:
        plan = builder(10, 4)
        rows, counts = zip(*remaining, strict=True) if remaining else ((), ())
        plan.place_running(rows_of(), rows_of(*rows), np.array(counts, dtype=np.int64))
        computed = plan.rows_and_counts(prefills, admission)
        return dict(zip(*(each.tolist() for each in computed), strict=True))

    assert step((0, 8), (1, 30)) == {0: 8, 1: 2}  # of its shares 1 has 25 to go
    assert step() == {}
    assert step((1, 30), (2, 28)) == {2: 10}


def test_copies_are_frozen_in_pairs_and_without_any_too():
    plan = builder(8, 4)
    plan.copies.swap_out.append((3, 0))
    plan.copies.on_write += [(1, 2), (1, 4)]

    copies = plan.copies.freeze()

    assert len(plan.copies) == 3
    assert copies.swap_out.tolist() == [[3, 0]]
    assert copies.on_write.tolist() == [[1, 2], [1, 4]]
    assert copies.swap_in.shape == (0, 2)


def test_a_prompt_wants_no_more_than_a_chunk():
    plan = builder(40, 4, chunk=6)
    plan.place_running(rows_of(0), rows_of(1, 2), np.array([100, 3]))
    assert plan.has_room_for(1000)
    plan.place_admitted(3, [3], 0, 1000)

    rows, counts = rows_and_counts(plan)
    assert (rows.tolist(), counts.tolist()) == ([0, 1, 2, 3], [1, 6, 3, 6])

    plan.withdraw(3)
    assert rows_and_counts(plan)[1].tolist() == [1, 6, 3]


def test_chunks_within_a_block_are_short_prompts():
    """Of long ones only a few may start; in chunks as small as blocks they are like the others."""
    long, chunked = builder(8, 4), builder(8, 4, chunk=4)
    for plan in (long, chunked):
        plan.place_admitted(0, [0], 0, 100)

    assert not long.has_room_for(100)
    assert chunked.has_room_for(100)


@pytest.mark.parametrize(
    ("budget", "placed"),
    [(1, [0, 1, 2]), (3, [0, 1, 2]), (4, [0, 1, 2, 3]), (5, [0, 1, 2, 3])],
)
def test_decodes_go_on_and_prefills_wait_where_a_budget_is_too_small(
    budget: int, placed: list[int]
):
    plan = builder(budget, 4)
    plan.place_running(rows_of(0, 1, 2), rows_of(3, 4), np.array([9, 9]))

    assert plan.is_full
    rows, counts = rows_and_counts(plan)
    assert rows.tolist() == placed
    assert counts.tolist() == [1, 1, 1, budget - 3][: len(placed)]


def test_the_first_to_enter_has_room_in_the_smallest_budget():
    plan = builder(1, 4)

    assert plan.has_room_for(9)
    plan.place_admitted(0, [0], 0, 9)
    assert plan.is_full
    assert not plan.has_room_for(1)
    assert rows_and_counts(plan)[1].tolist() == [1]


@pytest.mark.parametrize("seed", range(100))
def test_as_many_are_placed_at_once_as_one_after_another(seed: int):
    chance = random.Random(seed)
    budget, size = chance.randint(8, 80), chance.choice([1, 4, 16])
    remaining = [chance.choice([1, 3, size, chance.randint(1, 60)]) for _ in range(12)]
    running = rows_of(*range(20, 20 + chance.randint(1, 8))), rows_of(50), np.array([9])
    at_once, singly = (
        PlanBuilder(step_id=1, now_s=0.0, token_budget=budget, block_size=size, prefill_chunk=chunk)
        for chunk in [chance.choice([None, 2, 20])] * 2
    )
    for plan in (at_once, singly):
        plan.place_running(*running)

    num = at_once.num_with_room(remaining)
    rows = list(range(num))
    at_once.place_all_admitted(rows, [10 + row for row in rows], [5] * num, remaining[:num])
    placed = 0
    for row, count in enumerate(remaining):
        if singly.is_full or not singly.has_room_for(count):
            break
        singly.place_admitted(row, (10 + row,), 5, count)
        placed += 1

    assert num == placed
    assert at_once.is_full == singly.is_full
    assert [at_once.has_room_for(each) for each in remaining] == [
        singly.has_room_for(each) for each in remaining
    ]
    for one, other in zip(rows_and_counts(at_once), rows_and_counts(singly), strict=True):
        assert one.tolist() == other.tolist()
    assert (at_once.seated, at_once.admitted, at_once.cached) == (
        singly.seated,
        singly.admitted,
        singly.cached,
    )
