"""What a step tells the outside, beside the plan for the runner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cadenza.scheduler.plan import Int32Array, Int64Array, StepPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """The last outcome applied, and the seats that changed hands in this step.

    `requests`, `tokens`, `finished` and `plan_rows` are parallel: one element for each row that
    got a token or ended by itself. A row that was dropped while its token was computed still shows
    that token; the reader has forgotten it.
    """

    requests: Int64Array
    tokens: Int32Array  # -1 for a row that failed
    finished: npt.NDArray[np.uint8]  # values of `FinishReason`
    plan_rows: npt.NDArray[np.intp]  # where the row stood in the plan that was executed
    admitted: Int64Array  # requests
    admitted_cached: Int32Array  # tokens of each that were found in the prefix index
    preempted: Int64Array  # requests


class StepResult(NamedTuple):
    """What `Scheduler.step` returns."""

    report: StepReport
    plan: StepPlan | None  # None: nothing to compute


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """The scheduler's state now, and totals since it was built."""

    running: int
    waiting: int
    free_blocks: int
    cached_blocks: int
    total_blocks: int
    steps: int
    preemptions: int
    computed_tokens: int  # in prefills, recomputed ones included, and in decodes
    generated_tokens: int
    prefix_queries: int  # tokens looked up at first admissions
    prefix_hits: int  # tokens of them found
    policy_faults: int
