"""A report as one HTML file: plots, the table, tenants, waits. It loads nothing."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np

from cadenza.simulator.plots import Line, distribution_of, over_time, plot
from cadenza.simulator.run import Run
from cadenza.simulator.sections import Figures, Section, heading, sections
from cadenza.simulator.summary import Targets, meets

_SCALES = np.geomspace(0.1, 10.0, 41)  # of the targets

_STYLE = """
:root { color-scheme: light dark; --text: #1f2328; --paper: #fff; --quiet: #57606a;
  --line: #d0d7de; --shade: #f6f8fa; --alert: #fff5f5;
  --c0: #0072b2; --c1: #d55e00; --c2: #009e73; --c3: #cc79a7; --c4: #a87900; --c5: #2a9fd6;
  --c6: #57606a }
@media (prefers-color-scheme: dark) { :root { --text: #e6edf3; --paper: #0d1117; --quiet: #9198a1;
  --line: #30363d; --shade: #161b22; --alert: #2d1416;
  --c0: #4aa3df; --c1: #ff8a3d; --c2: #2fc99a; --c3: #e39ac4; --c4: #e6b325; --c5: #8bd3ff;
  --c6: #adb5bd } }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem;
  color: var(--text); background: var(--paper) }
h1 { font-size: 1.6rem } h2 { font-size: 1.2rem; margin: 2.5rem 0 .8rem }
.facts { color: var(--quiet); margin: 0; padding: 0; list-style: none; overflow-wrap: anywhere }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(24rem, 100%), 1fr));
  gap: 1.5rem }
figure { margin: 0; min-width: 0 } figcaption { font-weight: 600 }
svg { width: 100%; display: block } svg text { font-size: 11px; fill: var(--quiet) }
.x { text-anchor: middle } .y { text-anchor: end }
.grid { stroke: var(--line); stroke-width: .6 }
.keys { display: flex; flex-wrap: wrap; gap: .1rem 1rem; font-size: .8rem; color: var(--quiet) }
.keys span { overflow-wrap: anywhere } .keys i { display: inline-block; width: .8rem;
  height: .25rem; margin-right: .4rem; vertical-align: middle }
.remark { border-left: 4px solid #d1242f; padding: .4rem .8rem; background: var(--alert) }
.wide { overflow-x: auto } table { border-collapse: collapse; font-size: .85rem;
  font-variant-numeric: tabular-nums }
th, td { padding: .2rem .7rem; text-align: right; border-bottom: 1px solid var(--line);
  white-space: nowrap } th { background: var(--shade); white-space: normal }
th:first-child, td:first-child { text-align: left }
.note { color: var(--quiet); font-size: .85rem }
"""


def page(report: Figures, runs: Sequence[Run], targets: Targets) -> str:
    """The whole page, the same for the same runs."""
    source = escape(str(report["trace"]["source"]))
    facts = "".join(f"<li>{escape(line)}</li>" for line in heading(report))
    remarks = "".join(f'<p class="remark">{escape(each)}</p>' for each in report["remarks"])
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>Simulation of {source}</title><style>{_STYLE}</style></head><body>"
        f'<h1>What policies do with a load</h1><ul class="facts">{facts}</ul>{remarks}'
        f'<h2>Plots</h2><div class="plots">{"".join(_plots(runs, targets))}</div>'
        f"<h2>Figures</h2>{''.join(map(_table, sections(report)))}</body></html>\n"
    )


def _table(section: Section) -> str:
    rows = "".join(f"<tr>{_cells('td', row)}</tr>" for row in section.rows)
    note = f'<p class="note">{escape(section.note)}</p>' if section.note else ""
    return (
        f'<div class="wide"><table><thead><tr>{_cells("th", section.head)}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>{note}<p></p>"
    )


def _cells(kind: str, row: Sequence[str]) -> str:
    return "".join(f"<{kind}>{escape(cell)}</{kind}>" for cell in row)


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
        *_preemptions(runs),
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


def _preemptions(runs: Sequence[Run]) -> list[str]:
    """How many requests had how many, if any had one."""
    if not any(run.preemptions.any() for run in runs):
        return []
    lines = []
    for run in runs:
        counts = np.bincount(run.preemptions)
        share = counts.cumsum() / counts.sum()
        lines.append(Line(run.name, np.arange(len(counts), dtype=np.float64), share))
    axes = "preemptions, or fewer", "share of requests"
    return [plot("Preemptions of a request", *axes, lines)]


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
        )
        for run in runs
    ]


def _service(run: Run, tenants: Sequence[str], name: str) -> Line:
    own = np.array([tenant == name for tenant in tenants])[run.tokens.request]
    time_s = run.tokens.time_s[own]
    return Line(name, time_s, np.arange(1.0, len(time_s) + 1))
