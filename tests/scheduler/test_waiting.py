"""The order of those who wait."""

import numpy as np
import pytest

from cadenza.scheduler.waiting import earliest, later_admissions, lowest


def test_an_arrival_is_overtaken_by_each_later_one_that_was_admitted():
    assert later_admissions(np.array([0, 3, 5, 9]), [4, 2, 8]).tolist() == [3, 2, 1, 0]


def test_nobody_is_overtaken_when_nobody_was_admitted():
    assert later_admissions(np.array([0, 3]), []).tolist() == [0, 0]


@pytest.mark.parametrize("values", [1, 3, 10**6])
@pytest.mark.parametrize("size", [1, 40, 3000])
@pytest.mark.parametrize("num", [0, 1, 17, 5000])
def test_the_first_are_those_of_the_whole_queue_sorted(values: int, size: int, num: int):
    rng = np.random.default_rng(values + size)
    scores, arrivals = rng.integers(values, size=size).astype(float), rng.permutation(size)
    scores[rng.random(size) < 0.2] = np.inf

    first = np.lexsort((arrivals, scores))[:num]
    assert lowest(scores, arrivals, num).tolist() == first.tolist()
    assert earliest(arrivals, num).tolist() == arrivals.argsort()[:num].tolist()


def test_low_scores_may_all_be_in_one_of_the_groups_that_say_how_low_to_look():
    scores = np.arange(3840.0).reshape(96, 40).T.ravel()  # 0 to 39 in one of 96 groups, and so on

    assert lowest(scores, np.arange(3840), 3).tolist() == [0, 96, 192]
    assert lowest(np.minimum(scores, 1), np.arange(3840), 3).tolist() == [0, 1, 2]
