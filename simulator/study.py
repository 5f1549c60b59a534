"""Several profiles on one trace: the report that JSON, terminal and page are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cadenza.scheduler.config import SchedulerConfig
from cadenza.simulator.comparison import compare, nothing_queued
from cadenza.simulator.machines import LIMITS, Machine
from cadenza.simulator.run import Run
from cadenza.simulator.summary import HARDLY_QUEUED, Targets, distribution, plain, summary
from cadenza.simulator.trace import WHOLE, Span, Trace

FORMAT, VERSION = "cadenza-simulation", 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """What was tried beside policies."""

    trace: Trace  # with the first seed
    machine: Machine
    targets: Targets
    seed: int = 0  # the first
    seeds: int = 1
    measured: Span = WHOLE  # of the trace; figures are of this time alone
    max_tokens: int = 0  # that requests asked for whose trace does not say it


def report(runs: Sequence[Run], study: Study) -> dict[str, Any]:
    """All figures, in terms of JSON. The first run is the one that others are compared with.

    Nothing in it depends on when, where or how fast it was made.
    """
    machine, targets = study.machine, study.targets
    return {
        "format": FORMAT,
        "version": VERSION,
        "trace": _trace(study.trace),
        "machine": {"name": machine.name, "source": machine.source},
        "limits": _limits(runs[0].config),
        "max_tokens": study.max_tokens,
        "targets": plain({"ttft_s": targets.ttft_s, "tpot_s": targets.tpot_s}),
        "seed": study.seed,
        "seeds": study.seeds,
        "measured": None if study.measured == WHOLE else plain([*study.measured]),
        "recorded": recorded(study.trace, study.measured),
        "profiles": [summary(run, targets) for run in runs],
        "comparisons": [compare(runs[0], other, targets, study.seed) for other in runs[1:]],
        "remarks": remarks(runs, machine),
    }


def remarks(runs: Sequence[Run], machine: Machine) -> list[str]:
    """What whoever reads the figures has to know first."""
    said = []
    if not machine.copy_token_s and any(run.statistics.swaps for run in runs):
        said.append(
            f"What a copy to the host takes is not known of {machine.name}: swaps are free here."
        )
    if nothing_queued(*runs):
        most = max(run.queued_s / run.span_s if run.span_s else 0.0 for run in runs)
        said.append(
            f"Somebody waited in {100 * most:.2g} % of the time (less than {HARDLY_QUEUED:.0%}): "
            "policies tie because nothing queued. Shrink time with --stretch below 1, or memory."
        )
    for run in runs:
        if run.refused:
            said.append(
                f"{run.name}: {len(run.refused)} requests could not run at all; the first: "
                f"{run.refused[0][1]}."
            )
        if run.failed:
            said.append(f"{run.name}: {len(run.failed)} requests never moved and were failed.")
        if run.statistics.policy_faults:
            said.append(
                f"{run.name}: policies failed {run.statistics.policy_faults} times; the default "
                "decided in their place."
            )
    return said


def recorded(trace: Trace, measured: Span = WHOLE) -> dict[str, Any] | None:
    """What became of the requests where the trace was recorded; None: it does not say."""
    requests = trace.requests[trace.within(measured)]
    known = [each.recorded for each in requests if each.recorded is not None]
    if not known:
        return None
    ttft_s = np.array([each.ttft_s for each in known])
    e2e_s = np.array([each.e2e_s for each in known])
    further = np.array([each.output_tokens - 1 for each in requests if each.recorded])
    tpot_s = np.where(further > 0, (e2e_s - ttft_s) / np.maximum(further, 1), np.nan)
    told: dict[str, Any] = plain(
        {
            "requests": len(known),
            "ttft_s": distribution(ttft_s),
            "tpot_s": distribution(tpot_s),
            "e2e_s": distribution(e2e_s),
            "preemptions": {"all": sum(each.preemptions for each in known)},
        }
    )
    return told


def _trace(trace: Trace) -> dict[str, Any]:
    requests = trace.requests
    told: dict[str, Any] = plain(
        {
            "source": trace.source,
            "kind": trace.kind,
            "notes": list(trace.notes),
            "requests": len(requests),
            "span_s": trace.span_s,
            "rate_per_s": len(requests) / trace.span_s if trace.span_s else None,
            "mean_prompt_tokens": float(np.mean([each.prompt_tokens for each in requests])),
            "mean_output_tokens": float(np.mean([each.output_tokens for each in requests])),
            "tenants": len({each.tenant for each in requests}),
        }
    )
    return told


def _limits(config: SchedulerConfig) -> dict[str, Any]:
    return {name: getattr(config, name) for name in (*LIMITS, "enable_prefix_caching")}
