"""One run against another of the same trace, request by request."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from cadenza.simulator.run import FloatArray, Run
from cadenza.simulator.summary import HARDLY_QUEUED, Targets, meets, plain

WINDOWS = 20  # of a trace, with as many requests each, that are drawn again and again
RESAMPLES = 1000
_LEVEL = 95  # per cent
_NOTABLE = 0.05  # share by which a request counts as earlier or later
_TOLD = 5

_P99 = 0.99

BoolArray = npt.NDArray[np.bool_]

BY_REQUEST = ("ttft_s", "tpot_s", "longest_gap_s", "e2e_s")


def compare(base: Run, other: Run, targets: Targets, seed: int) -> dict[str, Any]:
    """What `other` changes, with intervals by a bootstrap over seeds, or over windows of the trace.

    Requests depend on their neighbours, so it is not they who are drawn, with replacement, but all
    that a seed has brought, or, of one seed, windows of successive arrivals; the same ones for both
    runs. A difference is `other` less `base`.
    """
    resampling = Resampling(base.parts, seed)
    figures: dict[str, Any] = {
        "base": base.name,
        "other": other.name,
        "drawn": resampling.drawn,
        "queued_share": [_queued_share(base), _queued_share(other)],
        "ties_because_nothing_queued": nothing_queued(base, other),
    }
    for name in BY_REQUEST:
        pair = getattr(base, name), getattr(other, name)
        figures[f"mean_{name}"] = _difference(*pair, resampling.means, _mean)
        figures[f"p99_{name}"] = _difference(*pair, resampling.p99s, _p99)
    pair = _met(base, targets), _met(other, targets)
    figures["attainment"] = _difference(*pair, resampling.means, _mean)
    figures["requests"] = _by_request(base, other)
    compared: dict[str, Any] = plain(figures)
    return compared


def nothing_queued(*runs: Run) -> bool:
    """Whether no order could have decided anything, in any of the runs."""
    return all(_queued_share(run) < HARDLY_QUEUED for run in runs)


def _queued_share(run: Run) -> float:
    return run.queued_s / run.span_s if run.span_s else 0.0


class Resampling:
    """Draws seeds or windows, and computes statistics of each draw."""

    def __init__(self, parts: Sequence[int], seed: int) -> None:
        """Of so many requests with each seed."""
        num = sum(parts)
        if len(parts) > 1:
            self.drawn, bounds = f"{len(parts)} seeds", np.cumsum((0, *parts))
        else:
            self.drawn = f"{WINDOWS} windows"
            bounds = np.linspace(0, num, WINDOWS + 1).round().astype(np.int64)
        self._num = len(bounds) - 1
        self._window = np.searchsorted(bounds, np.arange(num), side="right") - 1
        draws = np.random.default_rng(seed).integers(self._num, size=(RESAMPLES, self._num))
        self._times = np.stack([np.bincount(draw, minlength=self._num) for draw in draws])

    def means(self, values: FloatArray, known: BoolArray) -> FloatArray:
        """Of the known values of each draw; nan where there are none."""
        window = self._window[known]
        sums = self._times @ np.bincount(window, values[known], minlength=self._num)
        counts = self._times @ np.bincount(window, minlength=self._num)
        means: FloatArray = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
        return means

    def p99s(self, values: FloatArray, known: BoolArray) -> FloatArray:
        """The same of their 99th percentile, between two values as `numpy.quantile` has it."""
        order = np.argsort(values[known], kind="stable")
        ordered, window = values[known][order], self._window[known][order]
        found = np.full(RESAMPLES, np.nan)
        for rank, times in enumerate(self._times):
            up_to = times[window].cumsum()  # values drawn, each as often as its window was
            if up_to[-1]:
                share, place = math.modf(_P99 * (up_to[-1] - 1))
                low, high = ordered[np.searchsorted(up_to, (place, place + (share > 0)), "right")]
                found[rank] = low + share * (high - low)
        return found


def _met(run: Run, targets: Targets) -> FloatArray:
    return meets(run, targets).astype(np.float64)


def _mean(values: FloatArray) -> float:
    return float(values.mean())


def _p99(values: FloatArray) -> float:
    return float(np.quantile(values, _P99))


def _difference(
    base: FloatArray,
    other: FloatArray,
    resample: Callable[[FloatArray, BoolArray], FloatArray],
    statistic: Callable[[FloatArray], float],
) -> dict[str, Any] | None:
    """With its interval; None if no request has both figures."""
    known = ~(np.isnan(base) | np.isnan(other))
    if not known.any():
        return None
    drawn = resample(other, known) - resample(base, known)
    bounds = (100 - _LEVEL) / 2, (100 + _LEVEL) / 2
    low, high = np.nanpercentile(drawn, bounds).tolist()
    before, after = statistic(base[known]), statistic(other[known])
    return {
        "base": before,
        "other": after,
        "difference": after - before,
        "low": low,
        "high": high,
        "is_clear": low > 0 or high < 0,
    }


def _by_request(base: Run, other: Run) -> dict[str, Any]:
    """How many got their last token notably earlier or later, and who lost most."""
    both = base.e2e_s, other.e2e_s
    known = ~(np.isnan(both[0]) | np.isnan(both[1]))
    change_s = np.where(known, both[1] - both[0], 0.0)
    notable = _NOTABLE * both[0]
    order = np.argsort(-change_s, kind="stable")[:_TOLD].tolist()
    return {
        "compared": int(known.sum()),
        "earlier": int((known & (change_s < -notable)).sum()),
        "later": int((known & (change_s > notable)).sum()),
        "median_change_s": float(np.median(change_s[known])) if known.any() else None,
        "lost_most": [
            {
                "request": index,
                "tenant": base.trace.requests[index].tenant,
                "base_e2e_s": float(both[0][index]),
                "other_e2e_s": float(both[1][index]),
            }
            for index in order
            if change_s[index] > 0
        ],
    }
