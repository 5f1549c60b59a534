"""From a step's report to the frame that the front process reads."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np

from cadenza.scheduler.plan import Logprobs, StepOutcome
from cadenza.scheduler.report import Statistics, StepReport
from cadenza.wire.messages import Counters, RowLogprobs, Step


def step_frame(report: StepReport, executed: StepOutcome | None, statistics: Statistics) -> Step:
    """The frame for `report`, with the log-probabilities of the outcome that it reaped."""
    return Step(
        step_id=statistics.steps,
        requests=report.requests.tobytes(),
        tokens=report.tokens.tobytes(),
        finished=report.finished.tobytes(),
        logprobs=_logprobs(report, executed),
        admitted=report.admitted.tobytes(),
        admitted_cached=report.admitted_cached.tobytes(),
        preempted=report.preempted.tobytes(),
        counters=Counters(**asdict(statistics)),
    )


def _logprobs(report: StepReport, executed: StepOutcome | None) -> tuple[RowLogprobs, ...]:
    if executed is None or not executed.logprobs:
        return ()
    wanted = np.isin(report.plan_rows, list(executed.logprobs)) & (report.tokens >= 0)
    return tuple(
        _row_logprobs(int(row), executed.logprobs[int(report.plan_rows[row])])
        for row in np.flatnonzero(wanted)
    )


def _row_logprobs(row: int, logprobs: Logprobs) -> RowLogprobs:
    return RowLogprobs(
        row, logprobs.sampled, logprobs.top_ids.tobytes(), logprobs.top_logprobs.tobytes()
    )
