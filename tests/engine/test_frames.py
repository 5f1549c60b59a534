"""From a step's report to its frame: every array at its place, log-probabilities at their row."""

from dataclasses import replace
from typing import get_args

import numpy as np

from cadenza.engine.frames import step_frame
from cadenza.policies.runner import FaultCount
from cadenza.scheduler import decisions
from cadenza.scheduler.plan import Logprobs, PromptScores, StepOutcome
from cadenza.scheduler.report import Statistics, StepReport
from cadenza.scheduler.states import FinishReason
from cadenza.wire import messages
from cadenza.wire.arrays import read_requests, view_floats, view_ids
from cadenza.wire.codec import FrameReader, encode
from cadenza.wire.messages import Counters, Decision, HookUse, ToFront

STATISTICS = Statistics(
    **{
        name: True if name == "at_rest" else number
        for number, name in enumerate(Statistics._fields, start=1)
    }
)
# Samples 2, 0 and 3 of the outcome, in this order, and a row that ended without a sample; the
# reaper left sample 1 out, and sample 3 failed.
REPORT = StepReport(
    requests=np.array([30, 10, 40, 80]),
    tokens=np.array([300, 100, -1, -1], dtype=np.int32),
    finished=np.array([0, 3, 4, 5], dtype=np.uint8),
    samples=np.array([2, 0, 3, -1]),
    admitted=np.array([50]),
    admitted_cached=np.array([16], dtype=np.int32),
    preempted=np.array([60, 70]),
    decisions=(),
)


def outcome(logprobs: dict[int, Logprobs]) -> StepOutcome:
    return StepOutcome(
        step_id=6,
        tokens=np.array([100, -1, 300, -1], dtype=np.int32),
        failed=np.array([False, False, False, True]),
        logprobs=logprobs,
    )


def test_arrays_and_counters_keep_their_places():
    frame = step_frame(REPORT, outcome({}), STATISTICS, received=41)

    assert read_requests(frame.requests) == [30, 10, 40, 80]
    assert view_ids(frame.tokens).tolist() == [300, 100, -1, -1]
    assert list(frame.finished) == [0, 3, 4, 5]
    assert read_requests(frame.admitted) == [50]
    assert view_ids(frame.admitted_cached).tolist() == [16]
    assert read_requests(frame.preempted) == [60, 70]
    assert frame.decisions == ()
    assert frame.prompt_scores == ()
    assert frame.step_id == STATISTICS.steps
    assert frame.counters == Counters(received=41, **STATISTICS._asdict())


def test_logprobs_follow_their_row_and_a_failed_row_has_none():
    def logprobs(value: float) -> Logprobs:
        return Logprobs(value, np.array([7], dtype=np.int32), np.array([value], dtype=np.float32))

    wanted = {0: logprobs(-1.0), 2: logprobs(-2.0), 3: logprobs(-3.0)}

    frame = step_frame(REPORT, outcome(wanted), STATISTICS, received=0)

    assert [(entry.row, entry.logprob) for entry in frame.logprobs] == [(0, -2.0), (1, -1.0)]
    assert view_ids(frame.logprobs[0].top_ids).tolist() == [7]
    assert view_floats(frame.logprobs[0].top_logprobs).tolist() == [-2.0]


def test_a_frame_without_an_outcome_has_no_logprobs():
    assert step_frame(REPORT, None, STATISTICS, received=0).logprobs == ()


def test_counters_are_the_statistics_field_by_field():
    """The frame copies them by their places, so these must be the same on both sides."""
    assert ["received", *Statistics._fields] == list(Counters.__struct_fields__)


WHEN = (6, 1.5, 30)  # step, time, request
RECORDS = [
    (decisions.Arrived(*WHEN, 9, 4), "arrived", {"prompt_tokens": 9, "cached_tokens": 4}),
    (
        decisions.Admitted(*WHEN, rank=2, wait_s=0.5, cached_tokens=4, starving=True),
        "admitted",
        {"rank": 2, "wait_s": 0.5, "cached_tokens": 4, "starving": True},
    ),
    (
        decisions.Preempted(*WHEN, decisions.Cause.MEMORY, True, 0.25, 0.125),
        "preempted",
        {"cause": "memory", "swapped": True, "recompute_s": 0.25, "swap_s": 0.125},
    ),
    (decisions.Displaced(*WHEN, by=77), "displaced", {"by": 77}),
    (
        decisions.Resumed(*WHEN, rank=0, wait_s=2.0, cached_tokens=8, from_host=False),
        "resumed",
        {"rank": 0, "wait_s": 2.0, "cached_tokens": 8, "from_host": False},
    ),
    (decisions.HostCopyDropped(*WHEN), "host_copy_dropped", {}),
    (decisions.Parked(*WHEN), "parked", {}),
    (decisions.Unparked(*WHEN), "unparked", {}),
    (decisions.Starving(*WHEN, 3, 4.0), "starving", {"overtakes": 3, "wait_s": 4.0}),
    (decisions.RefusedArrival(*WHEN, "too long"), "refused", {"message": "too long"}),
    (decisions.Stalled(*WHEN, 1001), "stalled", {"steps": 1001}),
    (
        decisions.Finished(*WHEN, FinishReason.STOP_TOKEN, 12),
        "finished",
        {"reason": "stop_token", "generated_tokens": 12},
    ),
]


def test_faults_of_policies_travel_where_there_is_news():
    news = (FaultCount("mine", "order_admissions", 3, True),)

    frame = step_frame(REPORT, None, STATISTICS, received=0, policy_news=news)

    assert frame.policy_faults == (messages.FaultCount("mine", "order_admissions", 3, True),)
    (received,) = FrameReader(ToFront).feed(encode(frame))
    assert received.policy_faults == frame.policy_faults
    assert step_frame(REPORT, None, STATISTICS, received=0).policy_faults == ()


def test_every_kind_of_decision_reaches_the_front_in_order():
    """By the name and facts that clients see, and through the codec."""
    report = REPORT._replace(decisions=tuple(record for record, _, _ in RECORDS))

    frame = step_frame(report, None, STATISTICS, received=0)

    expected = tuple(Decision(kind, 30, 6, 1.5, facts) for _, kind, facts in RECORDS)
    assert frame.decisions == expected
    (received,) = FrameReader(ToFront).feed(encode(frame))
    assert received.decisions == expected
    assert {type(record) for record, _, _ in RECORDS} == set(get_args(decisions.Decision))


def test_how_often_hooks_were_asked_is_passed_on():
    uses = [HookUse("fcfs", "order_admissions", 5, 0.5)]
    assert step_frame(REPORT, None, STATISTICS, 0, (), uses).hook_uses == tuple(uses)


def test_scores_of_prompts_travel_with_the_outcome():
    top_ids = np.array([[1, 2], [3, 4]], dtype=np.int32)
    values = np.array([-0.5, -1.5], dtype=np.float32)
    scores = PromptScores(
        7, 3, values, np.array([1, 9], dtype=np.int32), top_ids, np.float32(-1) * top_ids
    )
    executed = replace(outcome({}), prompt_scores=[scores])

    [told] = step_frame(REPORT, executed, STATISTICS, received=0).prompt_scores

    assert (told.request, told.first) == (7, 3)
    assert view_floats(told.logprobs).tolist() == values.tolist()
    assert view_ids(told.ranks).tolist() == [1, 9]
    assert view_ids(told.top_ids).tolist() == [1, 2, 3, 4]
