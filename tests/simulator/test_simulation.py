"""A run: times, ends, queues, preemptions, all by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from cadenza.policies.profile import Profile
from cadenza.simulator.machines import Machine
from cadenza.simulator.step_time import StepTime
from cadenza.simulator.summary import Targets, summary
from cadenza.simulator.synthetic import Shape, synthetic
from cadenza.simulator.trace import Span, TraceRequest
from tests.simulator.traces import run_of, trace_of


def test_a_request_alone_takes_a_step_a_token():
    run = run_of(trace_of(TraceRequest(0.0, 10, 3)))

    assert run.ttft_s[0] == pytest.approx(0.01)
    assert run.tpot_s[0] == pytest.approx(0.01)
    assert run.e2e_s[0] == pytest.approx(0.03)
    assert run.longest_gap_s[0] == pytest.approx(0.01)
    assert run.is_whole.all()
    assert run.queued_s == 0


def test_a_prompt_beyond_the_budget_takes_several_steps():
    run = run_of(trace_of(TraceRequest(0.0, 100, 1)), max_num_batched_tokens=40)

    assert run.ttft_s[0] == pytest.approx(0.03)
    assert run.steps.tokens.tolist() == [40, 40, 20]


def test_who_arrives_during_a_step_is_met_by_the_next():
    run = run_of(trace_of(TraceRequest(0.0, 4, 5), TraceRequest(0.011, 4, 1)))

    assert run.admitted_s[1] == pytest.approx(0.02)
    assert run.ttft_s[1] == pytest.approx(0.019)


def test_nothing_happens_while_nobody_is_here():
    run = run_of(trace_of(TraceRequest(0.0, 4, 1), TraceRequest(50.0, 4, 1)))

    assert len(run.steps.took_s) == 2
    assert run.steps.began_s[1] == 50.0
    assert run.span_s == pytest.approx(50.01)


def test_time_with_a_queue_is_that_of_steps_beside_which_somebody_waits():
    requests = [TraceRequest(0.0, 4, 3) for _ in range(3)]

    run = run_of(trace_of(*requests), max_num_seqs=2)

    assert run.queued_s == pytest.approx(0.03)
    assert run.steps.waiting.tolist() == [1, 1, 1, 0, 0, 0]
    assert run.admitted_s.tolist() == pytest.approx([0, 0, 0.03])


def test_equal_blocks_are_found_in_the_cache():
    first = TraceRequest(0.0, 18, 1, blocks=(7, 8, 9))
    same = TraceRequest(1.0, 18, 1, blocks=(7, 8, 9))
    other = TraceRequest(2.0, 18, 1, blocks=(7, 3, 9))

    run = run_of(trace_of(first, same, other))

    assert run.steps.tokens.tolist() == [18, 18 - 12, 18 - 4]


def test_what_is_a_requests_own_is_found_by_nobody():
    run = run_of(trace_of(TraceRequest(0.0, 18, 1), TraceRequest(1.0, 18, 1)))

    assert run.steps.tokens.tolist() == [18, 18]


def test_short_memory_preempts_and_loses_nothing():
    requests = [TraceRequest(0.0, 16, 40, max_tokens=40) for _ in range(4)]
    profile = {"reserve_blocks": "none", "choose_preemption": "recompute"}

    run = run_of(trace_of(*requests), Profile(profile), num_blocks=32)

    assert run.statistics.preemptions > 0
    assert run.preemptions.sum() == run.statistics.preemptions == sum(run.causes.values())
    assert run.is_whole.all()
    assert run.longest_gap_s.max() > 0.01


def test_swaps_copy_blocks_and_take_their_time():
    requests = [TraceRequest(0.0, 16, 40) for _ in range(4)]
    machine = Machine(
        name="slow", source="tests", step_time=StepTime(fixed_s=0.01), copy_token_s=0.001
    )
    profile = {"reserve_blocks": "none", "choose_preemption": "swap"}

    run = run_of(trace_of(*requests), Profile(profile), machine, num_blocks=32, num_host_blocks=32)

    assert run.statistics.swaps == run.statistics.preemptions > 0
    assert run.swapped_tokens >= 16
    assert run.steps.took_s.max() > 0.01 + 16 * 0.001 - 1e-9
    assert run.is_whole.all()


def test_the_end_comes_where_the_trace_has_it_whatever_was_asked_for():
    run = run_of(trace_of(TraceRequest(0.0, 10, 3), TraceRequest(0.0, 10, 5)), max_tokens=50)

    assert run.generated.tolist() == [3, 5]
    assert run.is_whole.all()


def test_what_can_never_run_is_told():
    run = run_of(trace_of(TraceRequest(0.0, 500, 3), TraceRequest(0.0, 10, 3)))

    ((index, why),) = run.refused
    assert index == 0
    assert "max_model_len 128" in why
    assert run.is_whole.tolist() == [False, True]
    assert np.isnan(run.ttft_s[0])


def test_runs_of_a_trace_are_equal():
    trace = synthetic(Shape(requests=60, rate=200, prompt=20, output=10, tenants=3), 5)
    runs = [run_of(trace, Profile({"order_admissions": "fair-share"})) for _ in range(2)]

    assert runs[0].statistics == runs[1].statistics
    assert np.array_equal(runs[0].tokens.time_s, runs[1].tokens.time_s)
    assert np.array_equal(runs[0].tokens.request, runs[1].tokens.request)


def test_an_order_decides_once_somebody_waits():
    trace = trace_of(
        TraceRequest(0.0, 60, 30), TraceRequest(0.001, 60, 30), TraceRequest(0.002, 4, 1)
    )
    fcfs = run_of(trace, max_num_seqs=1)
    shortest = run_of(trace, Profile({"order_admissions": "shortest-prefill"}), max_num_seqs=1)

    assert fcfs.admitted_s[2] > fcfs.admitted_s[1]
    assert shortest.admitted_s[2] < shortest.admitted_s[1]


def test_a_while_is_measured_and_all_of_the_trace_replayed():
    trace = trace_of(*(TraceRequest(0.01 * rank, 8, 4) for rank in range(40)))
    whole, part = run_of(trace), run_of(trace, measured=Span(0.095, 0.295))

    assert len(part.trace.requests) == 20
    assert part.ttft_s.tolist() == pytest.approx(whole.ttft_s[10:30].tolist())
    assert part.e2e_s.tolist() == pytest.approx(whole.e2e_s[10:30].tolist())
    assert part.is_whole.all()
    assert part.span_s == pytest.approx(0.205)
    assert part.queued_s < whole.queued_s
    sampled = (whole.tokens.time_s > 0.105) & (whole.tokens.time_s < 0.305)
    assert part.statistics.generated_tokens == sampled.sum() < 160
    assert part.statistics.steps == len(part.steps.took_s) == 20
    assert (part.tokens.time_s >= 0).all()
    assert (part.tokens.time_s < 0.2).all()


def test_a_while_in_which_no_step_begins_has_its_requests_and_no_steps():
    trace = trace_of(TraceRequest(0.0, 8, 4), TraceRequest(0.015, 8, 4))
    run = run_of(trace, measured=Span(0.012, 0.018))

    assert run.e2e_s.tolist() == pytest.approx([0.045])
    assert (run.statistics.steps, run.statistics.generated_tokens, run.span_s) == (0, 0, 0)
    assert summary(run, Targets())["goodput_per_s"] is None


def test_what_is_not_measured_is_not_told_of():
    endless = TraceRequest(0.0, 500, 3)
    run = run_of(trace_of(endless, TraceRequest(0.5, 8, 3)), measured=Span(0.4, math.inf))

    assert run.refused == []
    assert run.e2e_s.tolist() == pytest.approx([0.03])
