"""How two answers to one question differ, in a figure that fits the question."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cadenza.policies.views import StepBudget

Array = npt.NDArray[Any]


class Difference(NamedTuple):
    """Of one pair of answers."""

    differs: bool  # in what would have been done
    first_differs: bool  # another request would have come first; False where there is no first
    figure: float  # by how much, 0 if not at all


def of_scores(live: Array, shadow: Array, ties: Array) -> Difference:
    """Figure: mean distance between a request's places in both orders, 1 if one is reversed.

    Equal scores are ordered by `ties`. +inf comes last, and is never the first.
    """
    order, other = np.lexsort((ties, live)), np.lexsort((ties, shadow))
    num = len(live)
    places = np.empty(num, dtype=np.int64)
    places[other] = np.arange(num)
    moved = int(np.abs(places[order] - np.arange(num)).sum())
    return Difference(
        differs=bool(moved or (np.isinf(live) != np.isinf(shadow)).any()),
        first_differs=_first(live, order) != _first(shadow, other),
        figure=moved / max(num * num // 2, 1),
    )


def _first(scores: Array, order: Array) -> int | None:
    return int(order[0]) if len(order) and scores[order[0]] < np.inf else None


def of_margins(live: Array, shadow: Array) -> Difference:
    """Figure: the share of requests that one allows and the other does not."""
    return of_masks(live > 0, shadow > 0)


def of_masks(live: Array, shadow: Array) -> Difference:
    """Figure: the share of requests that are marked otherwise."""
    differing = int(np.count_nonzero(live != shadow))
    return Difference(bool(differing), False, differing / max(len(live), 1))


def of_budgets(live: StepBudget, shadow: StepBudget) -> Difference:
    """Figure: by how many tokens the shadow's budget is larger; below 0: smaller."""
    return Difference(live != shadow, False, float(shadow.tokens - live.tokens))


def of_counts(live: Array, shadow: Array) -> Difference:
    """Figure: by how many the shadow's counts are higher, on average; below 0: lower."""
    return Difference(
        bool((live != shadow).any()), False, float((shadow - live).mean()) if len(live) else 0.0
    )


def _order(live: Array, shadow: Array, arguments: Mapping[str, Any]) -> Difference:
    return of_scores(live, shadow, arguments["waiting"].arrival)


def _victims(live: Array, shadow: Array, arguments: Mapping[str, Any]) -> Difference:
    return of_scores(live, shadow, -arguments["running"].admission)


def _evictions(live: Array, shadow: Array, arguments: Mapping[str, Any]) -> Difference:
    return of_scores(live, shadow, arguments["blocks"].last_use)


def of_refusals(live: object | None, shadow: object | None) -> Difference:
    """Figure: 1 where one refuses and the other does not."""
    differs = (live is None) != (shadow is None)
    return Difference(differs, False, float(differs))


def of_shedding(live: Array, shadow: Array) -> Difference:
    """Figure: as `of_scores`, where the highest comes first, and of equals the latest."""
    return of_scores(-live, -shadow, -np.arange(len(live)))


class Comparison(NamedTuple):
    """How the answers of one hook are compared."""

    figure: str  # what the figure of a difference is
    compare: Callable[[Any, Any, Mapping[str, Any]], Difference]  # of live, shadow, arguments


COMPARISONS: dict[str, Comparison] = {
    "predict_lengths": Comparison(
        "mean difference in tokens", lambda live, shadow, _: of_counts(live, shadow)
    ),
    "plan_budget": Comparison(
        "mean difference in tokens", lambda live, shadow, _: of_budgets(live, shadow)
    ),
    "order_admissions": Comparison("mean change of place, 1 is reversed", _order),
    "reserve_blocks": Comparison(
        "mean difference in blocks", lambda live, shadow, _: of_counts(live, shadow)
    ),
    "select_victims": Comparison("mean change of place, 1 is reversed", _victims),
    "allow_displacement": Comparison(
        "share judged otherwise", lambda live, shadow, _: of_margins(live, shadow)
    ),
    "choose_preemption": Comparison(
        "share judged otherwise", lambda live, shadow, _: of_masks(live, shadow)
    ),
    "rank_cached_blocks": Comparison("mean change of place, 1 is reversed", _evictions),
    "guard_starvation": Comparison(
        "share judged otherwise", lambda live, shadow, _: of_masks(live, shadow)
    ),
}  # by hook, for every decision of the scheduler

FRONT_COMPARISONS: dict[str, Comparison] = {
    "gate_arrivals": Comparison(
        "share of calls judged otherwise", lambda live, shadow, _: of_refusals(live, shadow)
    ),
    "shed_load": Comparison(
        "mean change of place, 1 is reversed", lambda live, shadow, _: of_shedding(live, shadow)
    ),
}  # by hook, for every decision of the front
