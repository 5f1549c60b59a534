"""Whose turn it is when somebody starves."""

from __future__ import annotations

import numpy as np

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


def merged(tenants: list[int], starving: list[int], num: int, scores: list[float]) -> list[int]:
    everybody = np.arange(len(tenants))
    order = Turns().within_tenants(
        np.array(scores, dtype=float),
        everybody,
        np.array(tenants),
        np.array(starving),
        np.setdiff1d(everybody, starving),
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
