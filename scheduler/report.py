"""What a step tells the outside, beside the plan for the runner."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cadenza.scheduler.decisions import Decision
from cadenza.scheduler.plan import Int32Array, Int64Array, StepPlan


class StepReport(NamedTuple):
    """The last outcome applied, and the seats that changed hands in this step.

    `requests`, `tokens`, `finished` and `samples` are parallel: one element for each choice that
    got a token or ended by itself. A choice that was dropped while its token was computed still
    shows that token; the reader has forgotten it.
    """

    requests: Int64Array
    tokens: Int32Array  # -1 for a choice that ended without one
    finished: npt.NDArray[np.uint8]  # values of `FinishReason`
    samples: npt.NDArray[np.intp]  # index in the outcome that was applied; -1: of no sample
    admitted: Int64Array  # requests, resumed ones included
    admitted_cached: Int32Array  # tokens of each that need not be computed again
    preempted: Int64Array  # requests, swapped ones included
    decisions: tuple[Decision, ...]  # what was decided since the last report, oldest first


class StepResult(NamedTuple):
    """What `Scheduler.step` returns."""

    report: StepReport
    plan: StepPlan | None  # None: nothing to do for the runner


class Statistics(NamedTuple):
    """The scheduler's state now, and totals since it was built."""

    running: int  # seats taken, parked ones included
    waiting: int  # choices without a seat: waiting, preempted, swapped
    parked: int  # rows
    swapped: int  # rows
    at_rest: bool  # nothing to do before a message comes: all that is left waits for credit
    free_blocks: int
    cached_blocks: int
    total_blocks: int
    free_host_blocks: int
    total_host_blocks: int
    steps: int
    preemptions: int  # of both kinds
    swaps: int  # preemptions that kept a copy on the host
    computed_tokens: int  # in prefills, recomputed ones included, and in decodes
    recomputed_tokens: int  # dropped by preemptions, less what was found in the cache again
    generated_tokens: int
    prefix_queries: int  # tokens looked up at first admissions
    prefix_hits: int  # tokens of them found
    decisions_lost: int  # records that the bounded log had no room for
    policy_faults: int
