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
    tenants: Sequence[int],
    starving: Sequence[int],
    num: int,
    scores: Sequence[float],
    turns: Turns | None = None,
) -> list[int]:
    everybody = np.arange(len(tenants))
    order = (turns or Turns()).within_tenants(
        np.array(scores, dtype=float),
        everybody,
        np.array(tenants),
        np.isin(everybody, starving),
        num,
    )
    return order.tolist()


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


def test_starving_rows_that_the_order_puts_first_take_no_more_than_their_turns():
    scores = [0, 1, 2, 3, 4, 5, 6]

    assert merged([7] * 7, [0, 1, 2], 4, scores) == [0, 3, 4, 5]
    assert merged([7] * 7, [0, 1, 2], 7, scores) == [0, 3, 4, 5, 1, 6, 2]


def by_hand(
    tenants: list[int], starving: list[int], num: int, scores: list[float], turns: Turns
) -> list[int]:
    """The same, tenant by tenant and place by place; rows arrived in their order."""
    able = [row for row in range(len(tenants)) if row in starving or scores[row] < np.inf]
    order = sorted(able, key=lambda row: scores[row])[:num]
    placed = []
    for tenant in (tenants[row] for row in order):
        own = [row for row in able if tenants[row] == tenant and row not in placed]
        needy = [row for row in own if row in starving]
        normal = sorted((row for row in own if row not in starving), key=lambda row: scores[row])
        is_due = turns.lead(tenant) == 0
        placed.append((needy or normal)[0] if is_due or not normal else normal[0])
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
