"""A report as one HTML file: plots, the table, tenants, waits. It loads nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from cadenza.simulator.plots import Line, distribution_of, legend, over_time, plot
from cadenza.simulator.run import Run
from cadenza.simulator.summary import Targets, meets
from cadenza.simulator.table import table

Figures = Mapping[str, Any]

_SCALES = np.geomspace(0.1, 10.0, 41)  # of the targets

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 62rem; padding: 0 1rem;
  color: #1f2328; background: #fff }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(24rem, 1fr)); gap: 1rem }
figure { margin: 0 } figcaption { font-weight: 600 } svg { width: 100% }
svg text { font-size: 11px; fill: #57606a } .x { text-anchor: middle } .y { text-anchor: end }
.grid { stroke: #d0d7de; stroke-width: .6 }
.key { margin-right: 1.2rem } .key i { display: inline-block; width: .8rem; height: .8rem;
  margin-right: .4rem }
.remark { border-left: 4px solid #d1242f; padding: .4rem .8rem; background: #fff5f5 }
pre { overflow-x: auto; background: #f6f8fa; padding: 1rem; font-size: 13px }
@media (prefers-color-scheme: dark) { body { color: #e6edf3; background: #0d1117 }
  pre { background: #161b22 } .remark { background: #2d1416 } .grid { stroke: #30363d }
  svg text { fill: #9198a1 } }
"""


def page(report: Figures, runs: Sequence[Run], targets: Targets) -> str:
    """The whole page, the same for the same runs."""
    source = escape(str(report["trace"]["source"]))
    remarks = "".join(f'<p class="remark">{escape(each)}</p>' for each in report["remarks"])
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>Simulation of {source}</title><style>{_STYLE}</style></head><body>"
        f"<h1>What policies do with a load</h1>{remarks}"
        f"<p>{legend([run.name for run in runs])}</p>"
        f'<div class="plots">{"".join(_plots(runs, targets))}</div>'
        f"<h2>Figures</h2><pre>{escape(table(report))}</pre></body></html>\n"
    )


def _plots(runs: Sequence[Run], targets: Targets) -> list[str]:
    return [
        *_distributions(runs),
        plot(
            "Goodput against targets",
            f"times TTFT {targets.ttft_s:g} s and TPOT {targets.tpot_s:g} s, or a request's own",
            "requests a second",
            [_goodput(run, targets) for run in runs],
            log_x=True,
        ),
        plot(
            "Requests that wait",
            "s",
            "requests",
            [_by_time(run, run.steps.waiting) for run in runs],
        ),
        plot(
            "KV blocks held",
            "s",
            "share of the pool",
            [_by_time(run, run.steps.held_blocks / run.config.num_blocks) for run in runs],
        ),
        *_of_tenants(runs),
        plot(
            "Preemptions of a request",
            "preemptions",
            "share of requests with as many or fewer",
            [_preemptions(run) for run in runs],
        ),
    ]


def _distributions(runs: Sequence[Run]) -> list[str]:
    return [
        plot(
            title,
            "s",
            "share of requests",
            [distribution_of(run.name, getattr(run, column)) for run in runs],
            log_x=True,
        )
        for title, column in (
            ("Time to the first token", "ttft_s"),
            ("Time between tokens, mean of a request", "tpot_s"),
            ("Longest gap between two tokens of a request", "longest_gap_s"),
            ("From arrival to the last token", "e2e_s"),
        )
    ]


def _goodput(run: Run, targets: Targets) -> Line:
    met = [float(meets(run, targets, scale).sum()) for scale in _SCALES.tolist()]
    return Line(run.name, _SCALES, np.array(met) / (run.span_s or 1.0))


def _by_time(run: Run, values: np.ndarray[Any, Any]) -> Line:
    steps = run.steps
    return over_time(run.name, steps.began_s, steps.took_s, values.astype(np.float64))


def _preemptions(run: Run) -> Line:
    counts = np.bincount(run.preemptions)
    share = counts.cumsum() / counts.sum()
    return Line(run.name, np.arange(len(counts), dtype=np.float64), share)


def _of_tenants(runs: Sequence[Run]) -> list[str]:
    """Service that each of the largest tenants has had by a time, for each profile."""
    tenants = [each.tenant for each in runs[0].trace.requests]
    names, counts = np.unique(tenants, return_counts=True)
    if len(names) < 2:
        return []
    largest = names[np.argsort(-counts, kind="stable")[:7]].tolist()
    return [
        plot(
            f"Output tokens by tenant, {run.name}",
            "s",
            "tokens so far",
            [_service(run, tenants, name) for name in largest],
            has_legend=True,
        )
        for run in runs
    ]


def _service(run: Run, tenants: Sequence[str], name: str) -> Line:
    own = np.array([tenant == name for tenant in tenants])[run.tokens.request]
    time_s = run.tokens.time_s[own]
    return Line(name, time_s, np.arange(1.0, len(time_s) + 1))
