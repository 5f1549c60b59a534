"""From a step's report to its frame: every array at its place, log-probabilities at their row."""

import numpy as np

from cadenza.engine.frames import step_frame
from cadenza.scheduler.plan import Logprobs, StepOutcome
from cadenza.scheduler.report import Statistics, StepReport
from cadenza.wire.arrays import view_floats, view_ids, view_requests
from cadenza.wire.messages import Counters

STATISTICS = Statistics(
    running=1,
    waiting=2,
    free_blocks=3,
    cached_blocks=4,
    total_blocks=5,
    steps=6,
    preemptions=7,
    computed_tokens=8,
    generated_tokens=9,
    prefix_queries=10,
    prefix_hits=11,
    policy_faults=12,
)
# Rows 2, 0 and 3 of the plan, in this order; row 1 did not sample, row 3 failed.
REPORT = StepReport(
    requests=np.array([30, 10, 40]),
    tokens=np.array([300, 100, -1], dtype=np.int32),
    finished=np.array([0, 3, 4], dtype=np.uint8),
    plan_rows=np.array([2, 0, 3]),
    admitted=np.array([50]),
    admitted_cached=np.array([16], dtype=np.int32),
    preempted=np.array([60, 70]),
)


def outcome(logprobs: dict[int, Logprobs]) -> StepOutcome:
    return StepOutcome(
        step_id=6,
        tokens=np.array([100, -1, 300, -1], dtype=np.int32),
        failed=np.array([False, False, False, True]),
        logprobs=logprobs,
    )


def test_arrays_and_counters_keep_their_places():
    frame = step_frame(REPORT, outcome({}), STATISTICS)

    assert view_requests(frame.requests).tolist() == [30, 10, 40]
    assert view_ids(frame.tokens).tolist() == [300, 100, -1]
    assert list(frame.finished) == [0, 3, 4]
    assert view_requests(frame.admitted).tolist() == [50]
    assert view_ids(frame.admitted_cached).tolist() == [16]
    assert view_requests(frame.preempted).tolist() == [60, 70]
    assert frame.step_id == 6
    assert frame.counters == Counters(
        running=1,
        waiting=2,
        free_blocks=3,
        cached_blocks=4,
        total_blocks=5,
        steps=6,
        preemptions=7,
        computed_tokens=8,
        generated_tokens=9,
        prefix_queries=10,
        prefix_hits=11,
        policy_faults=12,
    )


def test_logprobs_follow_their_row_and_a_failed_row_has_none():
    def logprobs(value: float) -> Logprobs:
        return Logprobs(value, np.array([7], dtype=np.int32), np.array([value], dtype=np.float32))

    wanted = {0: logprobs(-1.0), 2: logprobs(-2.0), 3: logprobs(-3.0)}

    frame = step_frame(REPORT, outcome(wanted), STATISTICS)

    assert [(entry.row, entry.logprob) for entry in frame.logprobs] == [(0, -2.0), (1, -1.0)]
    assert view_ids(frame.logprobs[0].top_ids).tolist() == [7]
    assert view_floats(frame.logprobs[0].top_logprobs).tolist() == [-2.0]


def test_a_frame_without_an_outcome_has_no_logprobs():
    assert step_frame(REPORT, None, STATISTICS).logprobs == ()
