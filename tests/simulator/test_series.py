"""Runs of several seeds, told of as one."""

from __future__ import annotations

import numpy as np
import pytest

from cadenza.policies.profile import Profile
from cadenza.simulator.comparison import compare
from cadenza.simulator.run import Run
from cadenza.simulator.series import joined
from cadenza.simulator.summary import Targets, summary
from cadenza.simulator.synthetic import Shape, synthetic
from cadenza.simulator.trace import Span
from cadenza.simulator.waits import longest_waits
from tests.simulator.traces import run_of

TARGETS = Targets(ttft_s=0.5, tpot_s=0.1)
SHAPE = Shape(requests=50, rate=60, prompt=30, output=10, tail=1, tenants=3)


def runs_of(order: str) -> list[Run]:
    return [
        run_of(
            synthetic(SHAPE, seed),
            Profile({"order_admissions": order}),
            name=order,
            num_blocks=96,
            max_model_len=256,
        )
        for seed in range(6)
    ]


@pytest.fixture(scope="module")
def fcfs() -> list[Run]:
    return runs_of("fcfs")


def test_figures_are_those_of_all_requests(fcfs: list[Run]):
    told, parts = summary(joined(fcfs), TARGETS), [summary(run, TARGETS) for run in fcfs]

    assert told["requests"] == 300
    means = [each["ttft_s"]["mean"] for each in parts]
    assert told["ttft_s"]["mean"] == pytest.approx(np.mean(means), rel=1e-4)
    assert told["ttft_s"]["max"] == max(each["ttft_s"]["max"] for each in parts)
    for name in ("steps", "whole", "refused", "computed_tokens", "span_s"):
        assert told[name] == pytest.approx(sum(each[name] for each in parts), rel=1e-4)
    assert told["preemptions"]["all"] == sum(each["preemptions"]["all"] for each in parts)
    assert told["queued_s"] == pytest.approx(sum(each["queued_s"] for each in parts), rel=1e-4)


def test_each_begins_when_the_one_before_it_has_ended(fcfs: list[Run]):
    run = joined(fcfs)

    assert run.parts == (50,) * 6
    assert (np.diff(run.trace.arrival_s) >= 0).all()
    assert run.trace.arrival_s[50] == pytest.approx(fcfs[0].span_s)
    assert (np.diff(run.steps.began_s) > 0).all()
    later = run.tokens.request == 50 + 7
    assert later.sum() == fcfs[1].generated[7]
    assert run.tokens.time_s[later][-1] == pytest.approx(run.last_s[57])


def test_who_waits_beyond_what_is_measured_meets_nobody_of_the_next_seed():
    runs = [
        run_of(synthetic(SHAPE, seed), num_blocks=64, max_model_len=256, measured=Span(0.0, 0.5))
        for seed in range(4)
    ]
    assert all(np.nanmax(run.admitted_s) > run.span_s for run in runs)
    waits = [wait for run in runs for wait in longest_waits(run)]
    together = longest_waits(joined(runs))

    assert max(wait["overtaken_by"] for wait in together) == 0  # first come, first served
    told = ("wait_s", "lacked", "no_blocks", "ahead")
    waits.sort(key=lambda wait: -wait["wait_s"])
    assert [[wait[name] for name in told] for wait in together] == [
        [pytest.approx(wait[name]) if name != "lacked" else wait[name] for name in told]
        for wait in waits[:10]
    ]


def test_refusals_keep_to_their_requests():
    trace = synthetic(Shape(requests=3, prompt=30, output=3, tail=0), 0)
    refused = run_of(trace, max_model_len=16)
    run = joined([refused, refused])

    assert [index for index, _ in run.refused] == [0, 1, 2, 3, 4, 5]
    assert summary(run, TARGETS)["refused"] == 6


def test_one_run_is_itself(fcfs: list[Run]):
    assert joined(fcfs[:1]) is fcfs[0]


def test_seeds_are_drawn_whole(fcfs: list[Run]):
    other = runs_of("shortest-prefill")
    compared = compare(joined(fcfs), joined(other), TARGETS, 0)
    by_seed = [
        after.ttft_s.mean() - before.ttft_s.mean()
        for before, after in zip(fcfs, other, strict=True)
    ]
    ttft = compared["mean_ttft_s"]

    assert compared["drawn"] == "6 seeds"
    assert ttft["difference"] == pytest.approx(np.mean(by_seed), rel=1e-4)
    draws = np.random.default_rng(0).integers(6, size=(1000, 6))
    expected = np.percentile(np.array(by_seed)[draws].mean(axis=1), (2.5, 97.5))
    assert (ttft["low"], ttft["high"]) == pytest.approx(expected.tolist(), rel=1e-4)
