"""Figures of differing answers, computed by hand."""

import numpy as np
import pytest

from cadenza.policies.differences import of_counts, of_margins, of_masks, of_scores

INF = np.inf


@pytest.mark.parametrize(
    ("live", "shadow", "differs", "first_differs", "figure"),
    [
        ([1, 2, 3], [10, 20, 30], False, False, 0),
        ([1, 2, 3], [3, 2, 1], True, True, 4 / 4),  # places change by 2, 0 and 2 of at most 4
        ([1, 2, 3, 4], [1, 2, 4, 3], True, False, 2 / 8),
        ([1, 2, 3, 4], [4, 3, 2, 1], True, True, 8 / 8),
        ([0, 0, 0], [1, 2, 3], False, False, 0),  # ties in order
        ([1, 2, INF], [1, 2, 3], True, False, 0),  # the same order, but one may enter
        ([INF, INF], [1, 2], True, True, 0),  # nobody, or somebody
        ([INF, INF], [INF, INF], False, False, 0),
        ([], [], False, False, 0),
    ],
)
def test_scores(live, shadow, differs, first_differs, figure):
    ties = np.arange(len(live))
    assert of_scores(np.array(live), np.array(shadow), ties) == (differs, first_differs, figure)


def test_equal_scores_are_ordered_by_ties():
    same = np.zeros(3)
    backwards = np.array([3.0, 2.0, 1.0])
    assert of_scores(same, backwards, np.array([9, 8, 7])) == (False, False, 0)
    assert of_scores(same, backwards, np.array([7, 8, 9])) == (True, True, 1)


def test_masks_margins_and_counts():
    mask, other = np.array([True, False, True, False]), np.array([True, True, True, False])
    assert of_masks(mask, other) == (True, False, 0.25)
    assert of_masks(mask, mask) == (False, False, 0)
    margins = np.array([-INF, 0.0, 0.5, INF])
    assert of_margins(margins, np.array([-1.0, -5.0, 2.0, 1.0])) == (False, False, 0)
    assert of_margins(margins, np.array([0.1, 0.0, 2.0, 0.0])) == (True, False, 0.5)
    assert of_counts(np.array([1, 2, 3]), np.array([1, 4, 2])) == (
        True,
        False,
        pytest.approx(1 / 3),
    )
    assert of_counts(np.array([3, 3]), np.array([1, 1])) == (True, False, -2)
    assert of_counts(np.array([1]), np.array([1])) == (False, False, 0)


@pytest.mark.parametrize("of", [of_masks, of_margins, of_counts])
def test_nobody_is_no_difference(of):
    assert of(np.empty(0), np.empty(0)) == (False, False, 0)
