"""The order of those who wait."""

import numpy as np
import pytest

from cadenza.scheduler.waiting import interleave, later_admissions

S, N = [100, 101, 102], [0, 1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("starving", "normal", "lead", "order"),
    [
        ([], N[:3], 0, [0, 1, 2]),
        (S, [], 2, S),
        (S, N, 0, [100, 0, 1, 2, 101, 3, 4, 5, 102, 6]),
        (S[:2], N, 2, [0, 1, 100, 2, 3, 4, 101, 5, 6]),
        (S[:1], N[:1], 3, [0, 100]),
    ],
)
def test_a_starving_row_takes_every_fourth_place_at_most(
    starving: list[int], normal: list[int], lead: int, order: list[int]
):
    merged = interleave(np.array(starving, dtype=int), np.array(normal, dtype=int), lead)

    assert merged.tolist() == order


def test_an_arrival_is_overtaken_by_each_later_one_that_was_admitted():
    assert later_admissions(np.array([0, 3, 5, 9]), [4, 2, 8]).tolist() == [3, 2, 1, 0]


def test_nobody_is_overtaken_when_nobody_was_admitted():
    assert later_admissions(np.array([0, 3]), []).tolist() == [0, 0]
