"""How prefilling rows share a step's token budget."""

import numpy as np
import pytest

from cadenza.scheduler.planning import PlanBuilder, fair_shares


@pytest.mark.parametrize(
    ("wanted", "budget", "shares"),
    [
        ([], 8, []),
        ([5], 8, [5]),
        ([50], 8, [8]),
        ([2, 50], 8, [2, 6]),
        ([50, 2], 8, [6, 2]),
        ([50, 50], 8, [4, 4]),
        ([50, 50, 50], 8, [3, 3, 2]),
        ([1, 2, 3], 8, [1, 2, 3]),
        ([9, 1, 9, 9], 10, [3, 1, 3, 3]),
        ([9, 9], 0, [0, 0]),
    ],
)
def test_shares_are_max_min_fair(wanted: list[int], budget: int, shares: list[int]):
    assert fair_shares(np.array(wanted, dtype=np.int64), budget).tolist() == shares


def test_shares_never_exceed_the_budget_and_never_waste_it():
    chance = np.random.default_rng(0)
    for _ in range(500):
        wanted = chance.integers(1, 40, chance.integers(1, 9))
        budget = int(chance.integers(0, 100))

        shares = fair_shares(wanted, budget)

        assert (shares <= wanted).all()
        assert shares.sum() == min(budget, wanted.sum())
        unserved = shares < wanted
        if unserved.any():
            assert shares.max() <= shares[unserved].min() + 1


def rows_of(*rows: int) -> np.ndarray:
    return np.array(rows, dtype=np.intp)


def test_decodes_come_out_of_the_budget_before_prefills():
    plan = PlanBuilder(step_id=1, token_budget=10, block_size=4)
    plan.place_running(rows_of(0, 1, 2), rows_of(3), np.array([100]))
    remaining = np.array([1, 1, 1, 100])

    rows, counts = plan.rows_and_counts(remaining)

    assert rows.tolist() == [0, 1, 2, 3]
    assert counts.tolist() == [1, 1, 1, 7]


def test_short_prefills_fill_the_budget():
    """Sixty-four rows that miss one token each enter together."""
    plan = PlanBuilder(step_id=1, token_budget=64, block_size=16)
    for row in range(64):
        assert plan.has_room_for(1), row
        plan.place_admitted(row, cached=31, remaining=1)

    assert plan.is_full
    assert not plan.has_room_for(1)


def test_long_prefills_leave_room_for_short_ones():
    plan = PlanBuilder(step_id=1, token_budget=64, block_size=8)
    num_long = 0
    while plan.has_room_for(1000):
        plan.place_admitted(num_long, cached=0, remaining=1000)
        num_long += 1

    assert num_long == 4
    assert plan.has_room_for(3)


def test_one_long_prefill_may_always_enter_an_empty_step():
    plan = PlanBuilder(step_id=1, token_budget=8, block_size=8)

    assert plan.has_room_for(1000)
