"""Differences, their intervals, and what is said when there can be none."""

from __future__ import annotations

import json

import numpy as np
import pytest

from cadenza.policies.profile import Profile
from cadenza.simulator.comparison import RESAMPLES, WINDOWS, Resampling, compare
from cadenza.simulator.summary import Targets
from cadenza.simulator.synthetic import Shape, synthetic
from cadenza.simulator.table import table
from cadenza.simulator.trace import Recorded, TraceRequest
from tests.simulator.traces import run_of, told_of, trace_of

BUSY = synthetic(Shape(requests=200, rate=60, prompt=30, output=10, tail=1), 1)
IDLE = synthetic(Shape(requests=40, rate=1, prompt=30, output=4), 1)
TARGETS = Targets(ttft_s=1, tpot_s=1)


def shortest(trace: object):
    order = Profile({"order_admissions": "shortest-prefill"})
    return run_of(trace, order, name="sjf", num_blocks=512, max_model_len=1024)  # type: ignore[arg-type]


def test_a_run_against_itself_differs_in_nothing():
    run = run_of(BUSY, num_blocks=512, max_model_len=1024)
    compared = compare(run, run, TARGETS, 0)

    assert compared["mean_ttft_s"]["difference"] == 0
    assert not compared["mean_ttft_s"]["is_clear"]
    assert compared["requests"]["earlier"] == compared["requests"]["later"] == 0
    assert compared["requests"]["compared"] == 200


def test_differences_are_paired_and_lie_in_their_intervals():
    fcfs, sjf = run_of(BUSY, num_blocks=512, max_model_len=1024), shortest(BUSY)
    compared = compare(fcfs, sjf, TARGETS, 0)
    ttft = compared["mean_ttft_s"]

    assert ttft["difference"] == pytest.approx(np.mean(sjf.ttft_s - fcfs.ttft_s), rel=1e-4)
    assert ttft["low"] <= ttft["difference"] <= ttft["high"]
    assert compared["requests"]["earlier"] > 0
    assert compared["requests"]["later"] > 0
    assert not compared["ties_because_nothing_queued"]
    assert compared["requests"]["lost_most"][0]["other_e2e_s"] > 0


def test_a_percentile_of_a_draw_is_that_of_the_runs():
    values = np.random.default_rng(1).exponential(size=100)
    known = np.arange(100) % 7 > 0
    draws = np.random.default_rng(3).integers(WINDOWS, size=(RESAMPLES, WINDOWS))
    found = Resampling((100,), 3).p99s(values, known)

    for rank in (0, RESAMPLES - 1):
        drawn = [
            value
            for window in draws[rank]
            for value in values[5 * window : 5 * window + 5][known[5 * window : 5 * window + 5]]
        ]
        assert found[rank] == pytest.approx(np.quantile(drawn, 0.99))


def test_intervals_go_by_the_seed():
    fcfs, sjf = run_of(BUSY, num_blocks=512, max_model_len=1024), shortest(BUSY)

    assert compare(fcfs, sjf, TARGETS, 1) == compare(fcfs, sjf, TARGETS, 1)
    assert compare(fcfs, sjf, TARGETS, 1) != compare(fcfs, sjf, TARGETS, 2)


def test_policies_tie_where_nothing_queued_and_the_report_says_so():
    runs = [run_of(IDLE, num_blocks=512, max_model_len=1024), shortest(IDLE)]
    told = told_of(runs, TARGETS)

    assert told["comparisons"][0]["ties_because_nothing_queued"]
    assert "policies tie because nothing queued" in table(told)
    assert "they tie because nothing queued" in table(told)


def test_a_report_is_json_and_its_table_shows_each_profile():
    runs = [run_of(BUSY, num_blocks=512, max_model_len=1024), shortest(BUSY)]
    told = told_of(runs, TARGETS)
    text = table(told)

    assert json.loads(json.dumps(told, allow_nan=False)) == told
    assert "sjf against fcfs" in text
    assert "nothing queued" not in text
    assert f"{told['profiles'][0]['ttft_s']['mean']:.3g}" in text


def test_what_was_recorded_stands_beside_what_is_simulated():
    trace = trace_of(
        TraceRequest(0.0, 8, 3, recorded=Recorded(0.25, 0.75, 2)),
        TraceRequest(0.0, 8, 3, recorded=Recorded(0.75, 1.25, 0)),
    )
    told = told_of([run_of(trace)], TARGETS)

    assert told["recorded"]["ttft_s"]["mean"] == 0.5
    assert told["recorded"]["tpot_s"]["mean"] == 0.25
    assert told["recorded"]["preemptions"]["all"] == 2
    assert "recorded" in table(told).splitlines()[5]
