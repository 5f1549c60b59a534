"""The order of those who wait, beyond what a policy scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from cadenza.scheduler.columns import FloatColumn, IntColumn, where

NORMAL_PER_STARVING = 3  # a starving row takes at most every fourth admission

_SPARE = 32  # groups to each value that is wanted, so that hardly two of these are in one

Indices = npt.NDArray[np.intp]


def lowest(scores: FloatColumn, arrivals: IntColumn, num: int) -> Indices:
    """Indices of the `num` lowest scores, in order; ties go to the earlier arrival.

    Sorts only what it returns, so that a long queue costs one pass.
    """
    if num >= len(scores):
        return np.lexsort((arrivals, scores))
    if num == 0:
        return np.empty(0, dtype=np.intp)
    bound = _bound(scores, num)
    found = where(scores <= bound)
    if len(found) > 2 * num:  # ties, which may be all that wait
        found = _without_late_ties(scores, arrivals, bound, num)
    order = np.lexsort((arrivals[found], scores[found]))
    return found[order[:num]]


def earliest(arrivals: IntColumn, num: int) -> Indices:
    """Indices of the `num` earliest arrivals, in order; all of them if there are fewer."""
    if num >= len(arrivals):
        return arrivals.argsort(kind="stable")
    if num == 0:
        return np.empty(0, dtype=np.intp)
    found = where(arrivals <= _bound(arrivals, num))
    return found[arrivals[found].argsort()[:num]]


def _without_late_ties(scores: FloatColumn, arrivals: IntColumn, bound: Any, num: int) -> Indices:
    """Of those whose scores are within the bound, the ones that fewer than `num` go before."""
    below = where(scores < bound)
    if len(below) >= num:
        own = scores.take(below)
        bound = np.partition(own, num - 1)[num - 1]
        below = below[own < bound]
    ties = where(scores == bound)
    ties = ties[earliest(arrivals.take(ties), num - len(below))]
    return np.concatenate((below, ties))


def _bound(values: npt.NDArray[Any], num: int) -> Any:
    """A value that at least `num` do not exceed, and hardly more do, ties apart."""
    groups = _SPARE * num
    folds = len(values) // groups
    if folds > 1:  # the lowest of each of many groups: as many as wanted, in one pass
        values = values[: folds * groups].reshape(folds, groups).min(axis=0)
    return np.partition(values, num - 1)[num - 1]


def later_admissions(arrivals: IntColumn, fresh: Sequence[int]) -> Indices:
    """For each arrival rank, how many of the `fresh` ones are later."""
    ordered = np.sort(np.asarray(fresh, dtype=np.int64))
    return len(ordered) - np.searchsorted(ordered, arrivals, side="right")
