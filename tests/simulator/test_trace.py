"""What can be done to a trace, and the prompts that it stands for."""

from __future__ import annotations

import numpy as np
import pytest

from cadenza.simulator.errors import SimulatorError
from cadenza.simulator.trace import Prompts, Span, TraceRequest
from tests.simulator.traces import trace_of

FOUR = trace_of(*(TraceRequest(float(time), 10, 2) for time in (0, 1, 1, 3)))


def times(trace: object) -> list[float]:
    return [each.arrival_s for each in trace.requests]  # type: ignore[attr-defined]


def test_a_window_begins_at_0():
    assert times(FOUR.window(Span(1, 3))) == [0, 0]


def test_an_empty_window_says_where_the_requests_are():
    with pytest.raises(SimulatorError, match="the last of 4 arrives at 3 s"):
        FOUR.window(Span(10, 20))


def test_stretching_keeps_the_shape():
    assert times(FOUR.stretched(2.5)) == [0, 2.5, 2.5, 7.5]


@pytest.mark.parametrize("factor", [0.0, -1.0, float("inf"), float("nan")])
def test_time_has_a_direction_and_an_end(factor: float):
    with pytest.raises(SimulatorError):
        FOUR.stretched(factor)


def test_jitter_stays_before_the_next_time_and_goes_by_its_seed():
    jittered = [times(FOUR.jittered(seed)) for seed in (1, 1, 2)]

    assert jittered[0] == jittered[1] != jittered[2]
    assert 0 <= jittered[0][0] < 1 <= jittered[0][1] < jittered[0][2] < 3


def test_a_trace_tells_what_was_done_to_it():
    assert FOUR.window(Span(0, 2)).first(1).stretched(2).notes == (
        "from 0 to 2 s",
        "the first 1",
        "time stretched 2 times",
    )


def test_prompts_share_what_their_blocks_share():
    one = TraceRequest(0.0, 10, 1, blocks=(70, 80))
    two = TraceRequest(0.0, 12, 1, blocks=(70, 90))
    prompts = Prompts(trace_of(one, two))
    first, second = prompts.prompt(0), prompts.prompt(1)

    assert len(first) == 10
    assert np.array_equal(first[:4], second[:4])
    assert not np.intersect1d(first[4:], second[4:]).size
    assert 0 not in first
    assert prompts.own(0) in first[8:]
