"""The order of those who wait, beyond what a policy scores."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from cadenza.scheduler.columns import where

NORMAL_PER_STARVING = 3  # a starving row takes at most every fourth admission

_FOLDS = 16

Indices = npt.NDArray[np.intp]


def lowest(scores: npt.NDArray[np.float64], arrivals: npt.NDArray[np.int64], num: int) -> Indices:
    """Indices of the `num` lowest scores, in order; ties go to the earlier arrival.

    Sorts only what it returns, so that a long queue costs one pass.
    """
    if num >= len(scores):
        return np.lexsort((arrivals, scores))
    if num == 0:
        return np.empty(0, dtype=np.intp)
    found = where(scores <= _bound(scores, num))
    if len(found) > 2 * num:  # ties, which may be all that wait
        limit = np.partition(scores[found], num - 1)[num - 1]
        below, ties = found[scores[found] < limit], found[scores[found] == limit]
        wanted = num - len(below)
        ties = ties[np.argpartition(arrivals[ties], wanted - 1)[:wanted]]
        found = np.concatenate((below, ties))
    order = np.lexsort((arrivals[found], scores[found]))
    return found[order[:num]]


def _bound(scores: npt.NDArray[np.float64], num: int) -> np.float64:
    """A score that at least `num` others do not exceed, and hardly more do, ties apart."""
    if len(scores) >= 2 * _FOLDS * num:
        # The lowest of each of many groups: as many as wanted, in one pass
        width = len(scores) // _FOLDS
        scores = scores[: _FOLDS * width].reshape(_FOLDS, width).min(axis=0)
    bound: np.float64 = np.partition(scores, num - 1)[num - 1]
    return bound


def interleave(starving: Indices, normal: Indices, lead: int) -> Indices:
    """Merge two orders: `lead` normal ones, then one starving to every three normal ones.

    When one side runs out the other goes on alone.
    """
    places = np.arange(len(normal))
    shift = (places - lead) // NORMAL_PER_STARVING + 1
    normal_keys = places + np.where(places < lead, 0, shift)
    starving_keys = lead + (NORMAL_PER_STARVING + 1) * np.arange(len(starving))
    merged = np.concatenate((starving, normal))
    return merged[np.argsort(np.concatenate((starving_keys, normal_keys)), kind="stable")]


def later_admissions(arrivals: npt.NDArray[np.int64], fresh: Sequence[int]) -> Indices:
    """For each arrival rank, how many of the `fresh` ones are later."""
    ordered = np.sort(np.asarray(fresh, dtype=np.int64))
    return len(ordered) - np.searchsorted(ordered, arrivals, side="right")
