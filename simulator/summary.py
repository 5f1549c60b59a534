"""The figures of a run, as numbers that JSON may have."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cadenza.simulator.fairness import fairness
from cadenza.simulator.run import FloatArray, Run
from cadenza.simulator.waits import longest_waits

DIGITS = 6  # significant, of every figure
HARDLY_QUEUED = 0.01  # share of the time; below it an order has nothing to decide


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """What a request wants whose trace does not say it, in seconds."""

    ttft_s: float = 2.0
    tpot_s: float = 0.1


def meets(run: Run, targets: Targets, scale: float = 1.0) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """bool [requests], whether each was whole, and within `scale` times its targets."""
    ttft_s, tpot_s = _targets(run, targets)
    in_time = run.ttft_s <= scale * ttft_s
    fluent = ~(run.tpot_s > scale * tpot_s)  # one token alone has no time between tokens
    met: np.ndarray[Any, np.dtype[np.bool_]] = run.is_whole & in_time & fluent
    return met


def _targets(run: Run, targets: Targets) -> tuple[FloatArray, FloatArray]:
    requests = run.trace.requests
    ttft_s = np.array([each.ttft_target_s for each in requests])
    tpot_s = np.array([each.tpot_target_s for each in requests])
    unsaid = np.isinf(ttft_s) & np.isinf(tpot_s)
    return np.where(unsaid, targets.ttft_s, ttft_s), np.where(unsaid, targets.tpot_s, tpot_s)


def summary(run: Run, targets: Targets) -> dict[str, Any]:
    """All figures of one run."""
    statistics, met = run.statistics, meets(run, targets)
    span_s = run.span_s or math.nan
    figures = {
        "profile": run.name,
        "watermark": run.config.watermark,
        "requests": len(run.trace.requests),
        "whole": int(run.is_whole.sum()),
        "refused": len(run.refused),
        "failed": len(run.failed),
        "span_s": run.span_s,
        "steps": statistics.steps,
        "queued_s": run.queued_s,
        "queued_share": run.queued_s / span_s,
        "ttft_s": distribution(run.ttft_s),
        "tpot_s": distribution(run.tpot_s),
        "longest_gap_s": distribution(run.longest_gap_s),
        "e2e_s": distribution(run.e2e_s),
        "goodput_per_s": int(met.sum()) / span_s,
        "attainment": float(met.mean()),
        "output_tokens_per_s": statistics.generated_tokens / span_s,
        "preemptions": preemptions(run),
        "computed_tokens": statistics.computed_tokens,
        "hit_rate": statistics.prefix_hits / max(1, statistics.prefix_queries),
        "mean_kv_usage": _mean_usage(run),
        "fairness": fairness(run, met),
        "longest_waits": longest_waits(run),
        "policy_faults": statistics.policy_faults,
    }
    rounded: dict[str, Any] = plain(figures)
    return rounded


def preemptions(run: Run) -> dict[str, Any]:
    """How many, of which kind, why, and what was done again."""
    statistics = run.statistics
    return {
        "all": statistics.preemptions,
        "swapped": statistics.swaps,
        "recomputed": statistics.preemptions - statistics.swaps,
        "causes": run.causes,
        "recomputed_tokens": statistics.recomputed_tokens,
        "swapped_tokens": run.swapped_tokens,
        "most_of_one": int(run.preemptions.max(initial=0)),
    }


def distribution(values: FloatArray) -> dict[str, float | None]:
    """Mean, median, p90, p99 and most of those that there are; None without any."""
    known = values[~np.isnan(values)]
    if not len(known):
        return dict.fromkeys(("mean", "p50", "p90", "p99", "max"))
    p50, p90, p99 = np.percentile(known, (50, 90, 99)).tolist()
    return {
        "mean": float(known.mean()),
        "p50": p50,
        "p90": p90,
        "p99": p99,
        "max": float(known.max()),
    }


def plain(value: Any) -> Any:
    """With significant digits alone, and None for what is no number."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return value


def _mean_usage(run: Run) -> float:
    """Share of the pool that was held, by time."""
    steps = run.steps
    took_s = float(steps.took_s.sum())
    if not took_s:
        return 0.0
    return float((steps.held_blocks * steps.took_s).sum()) / took_s / run.config.num_blocks
