"""Whose turn it is when somebody starves."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

from cadenza.scheduler.turns import WHOLE, Turns


def test_three_normal_admissions_lie_between_two_of_starving_rows():
    turns, leads = Turns(), []
    for starving in (True, False, False, True, False, False, False, False):
        turns.count(WHOLE, starving=starving)
        leads.append(turns.lead(WHOLE))

    assert leads == [3, 2, 1, 3, 2, 1, 0, 0]


def test_whoever_begins_to_starve_has_the_first_turn():
    assert Turns().lead(WHOLE) == 0


def test_tenants_take_their_turns_apart():
    turns = Turns()
    turns.count(1, starving=True)
    turns.count(2, starving=False)

    assert (turns.lead(1), turns.lead(2)) == (3, 0)


def merged(
    tenants: Sequence[int] | None,
    starving: Sequence[int],
    num: int,
    scores: Sequence[float],
    turns: Turns | None = None,
) -> list[int]:
    """Rows arrived in their order."""
    everybody = np.arange(len(scores))
    order = (turns or Turns()).order(
        np.array(scores, dtype=float),
        everybody,
        np.isin(everybody, starving),
        num,
        None if tenants is None else np.array(tenants),
    )
    return order.tolist()


def after(*starving: bool) -> Turns:
    """Turns after these admissions."""
    turns = Turns()
    for each in starving:
        turns.count(WHOLE, starving=each)
    return turns


WORST = [9] * 3  # scores of the first three rows, which starve
S, N = [0, 1, 2], [3, 4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize(
    ("starving", "normal", "before", "order"),
    [
        ([], 7, (), N),
        (S, 0, (True, False), S),
        (S, 7, (), [0, 3, 4, 5, 1, 6, 7, 8, 2, 9]),
        (S, 7, (True, False), [3, 4, 0, 5, 6, 7, 1, 8, 9, 2]),
        (S, 1, (True,), [3, 0, 1, 2]),
    ],
)
def test_a_starving_row_takes_every_fourth_place(
    starving: list[int], normal: int, before: tuple[bool, ...], order: list[int]
):
    scores = [*WORST, *range(normal)] if starving else [np.inf] * 3 + [0.0, 1, 2, 3, 4, 5, 6]

    assert merged(None, starving, len(scores), scores, after(*before)) == order


def test_a_starving_row_keeps_the_place_that_its_order_gives_it():
    scores = [0, 1, 2, 3, 4, 5]

    assert merged(None, [0, 1, 2], 6, scores, after(True)) == [0, 1, 2, 3, 4, 5]
    assert merged(None, [0, 1, 4], 6, scores, after(True)) == [0, 1, 2, 3, 4, 5]
    assert merged(None, [0, 5], 6, scores, after(True)) == [0, 1, 2, 3, 5, 4]


def test_whoever_of_the_starving_is_first_by_score_the_earliest_has_the_place():
    assert merged(None, [0, 1, 2], 5, [9, 8, 0, 1, 2], after(True)) == [0, 3, 4, 1, 2]


def test_a_starving_row_takes_a_turn_of_its_tenant_and_of_nobody_else():
    # By score 1, 4, 2, 5, 3, 0: tenant 7 has the first, the third and the last two turns
    scores = [9, 0, 2, 4, 1, 3]

    assert merged([7, 7, 7, 7, 8, 8], [0], 6, scores) == [0, 4, 1, 5, 2, 3]
    assert merged([7, 7, 7, 7, 8, 8], [0, 5], 6, scores) == [0, 5, 1, 4, 2, 3]


def test_starving_rows_of_a_tenant_go_by_arrival_one_in_four():
    order = merged([7] * 8, [6, 7, 5], 8, scores=[0, 1, 2, 3, 4, 9, 8, 7])

    assert order == [5, 0, 1, 2, 6, 3, 4, 7]


def test_a_tenant_without_a_turn_has_none_to_give():
    assert merged([7, 7, 8], [2], 2, scores=[0, 1, np.inf]) == [0, 1]


def test_a_starving_row_that_its_order_keeps_out_has_a_turn_if_its_tenant_has_one():
    assert merged([7, 7, 8], [1], 2, scores=[0, np.inf, 1]) == [1, 2]


def by_hand(
    tenants: list[int], starving: list[int], num: int, scores: list[float], turns: Turns
) -> list[int]:
    """The same, place by place; rows arrived in their order."""
    able = [row for row in range(len(tenants)) if row in starving or scores[row] < np.inf]
    order = sorted(able, key=lambda row: scores[row])[:num]
    placed = []
    for tenant in (tenants[row] for row in order):
        own = [row for row in order if tenants[row] == tenant]
        needy = [row for row in able if tenants[row] == tenant and row in starving]
        entered = sum(row in placed for row in needy)
        # Up to whom the order by score has come: all before the first normal one without a place
        left = [row for row in own if row not in starving and row not in placed]
        passed = own[: own.index(left[0])] if left else own
        has_place = sum(row in starving for row in passed) > entered
        is_turn = turns.lead(tenant) == 0 and entered < len(needy)
        placed.append(needy[entered] if has_place or is_turn or not left else left[0])
        turns.count(tenant, starving=placed[-1] in starving)
    return placed


@pytest.mark.parametrize("seed", range(40))
def test_turns_within_tenants_are_what_a_loop_finds(seed: int):
    chance = random.Random(seed)
    size, num = chance.randint(1, 60), chance.randint(1, 40)
    tenants = [chance.choice((0, 1, 2, 300)) for _ in range(size)]
    scores = [chance.choice((*range(8), np.inf)) for _ in range(size)]  # ties, and some kept out
    starving = [row for row in range(size) if chance.random() < seed / 40]

    def turns() -> Turns:
        some = Turns()
        some.count(1, starving=True)
        some.count(1, starving=False)
        some.count(300, starving=True)
        return some

    expected = by_hand(tenants, starving, num, scores, turns())
    assert merged(tenants, starving, num, scores, turns()) == expected
