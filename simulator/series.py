"""Runs of a profile with several seeds, one after another, as if they were one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np

from cadenza.simulator.run import COUNTED, Run, Steps, Tokens
from cadenza.simulator.trace import Trace


def joined(runs: Sequence[Run]) -> Run:
    """A run of the requests of all, each of which begins when the steps of the one before it end.

    `Run.parts` tells them apart; no request has met any of another part. Of a run that was measured
    for a while only, requests may end after its last step: `Run.part_end_s` bounds their time.
    """
    if len(runs) == 1:
        return runs[0]
    begins_s = [0.0, *accumulate(run.span_s for run in runs)][:-1]
    firsts = [0, *accumulate(len(run.trace.requests) for run in runs)][:-1]
    moved = [_moved(*each) for each in zip(runs, begins_s, firsts, strict=True)]
    last = runs[-1]
    counts = {name: sum(getattr(run.statistics, name) for run in runs) for name in COUNTED}
    return replace(
        last,
        trace=replace(last.trace, requests=[each for run in moved for each in run.trace.requests]),
        parts=tuple(len(run.trace.requests) for run in runs),
        ends_s=tuple(end_s for run in moved for end_s in run.ends_s),
        **_concatenated(
            moved,
            ("admitted_s", "first_s", "last_s", "generated", "longest_gap_s", "preemptions"),
        ),
        refused=[each for run in moved for each in run.refused],
        failed=[each for run in moved for each in run.failed],
        causes=dict(sorted(sum((Counter(run.causes) for run in runs), Counter()).items())),
        swapped_tokens=sum(run.swapped_tokens for run in runs),
        statistics=last.statistics._replace(**counts),
        steps=Steps(**_concatenated([run.steps for run in moved], Steps.__slots__)),
        tokens=Tokens(**_concatenated([run.tokens for run in moved], Tokens.__slots__)),
    )


def _moved(run: Run, begin_s: float, first: int) -> Run:
    """The same run, later by `begin_s`, of requests whose numbers begin with `first`."""
    requests = [each._replace(arrival_s=each.arrival_s + begin_s) for each in run.trace.requests]
    trace: Trace = replace(run.trace, requests=requests)
    return replace(
        run,
        trace=trace,
        ends_s=tuple(end_s + begin_s for end_s in run.ends_s),
        admitted_s=run.admitted_s + begin_s,
        first_s=run.first_s + begin_s,
        last_s=run.last_s + begin_s,
        refused=[(index + first, why) for index, why in run.refused],
        failed=[index + first for index in run.failed],
        steps=replace(run.steps, began_s=run.steps.began_s + begin_s),
        tokens=Tokens(request=run.tokens.request + first, time_s=run.tokens.time_s + begin_s),
    )


def _concatenated(parts: Sequence[Any], names: Sequence[str]) -> dict[str, Any]:
    """These arrays of all parts, by name."""
    return {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
