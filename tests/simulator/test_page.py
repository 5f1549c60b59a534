"""The page is whole by itself, well formed, and says what the report says."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import numpy as np
import pytest

from cadenza.policies.profile import Profile
from cadenza.simulator.page import page
from cadenza.simulator.plots import Line, over_time, plot
from cadenza.simulator.run import Run
from cadenza.simulator.summary import Targets
from cadenza.simulator.synthetic import Shape, synthetic
from cadenza.simulator.trace import TraceRequest
from tests.simulator.traces import run_of, told_of, trace_of

TARGETS = Targets(ttft_s=0.5, tpot_s=0.1)


@pytest.fixture(scope="module")
def runs() -> list[Run]:
    trace = synthetic(Shape(requests=60, rate=60, prompt=30, output=10, tenants=3), 1)
    order = Profile({"order_admissions": "fair-share"})
    return [
        run_of(trace, num_blocks=512, max_model_len=1024),
        run_of(trace, order, name="<fair & square>", num_blocks=512, max_model_len=1024),
    ]


def page_of(runs: list[Run]) -> str:
    return page(told_of(runs, TARGETS), runs, TARGETS)


def test_it_loads_nothing(runs: list[Run]):
    text = page_of(runs)

    assert not re.search(r"<script|<link|<img|src=|href=|url\(|@import|https?://", text)


def test_it_is_well_formed_and_escapes_names(runs: list[Run]):
    text = page_of(runs).removeprefix("<!doctype html>\n")
    text = text.replace('<meta charset="utf-8">', "").replace(
        '<meta name="viewport" content="width=device-width">', ""
    )

    tree = ElementTree.fromstring(text)
    captions = [each.text for each in tree.iter("figcaption")]
    assert len(captions) == 9
    assert "Output tokens by tenant, <fair & square>" in captions


def test_every_plot_has_a_line_for_each_run(runs: list[Run]):
    figures = re.findall(r"<figcaption>(.*?)</figcaption>.*?</svg>", page_of(runs), re.DOTALL)
    lines = [part.count("<polyline") for part in page_of(runs).split("<figure>")[1:]]

    assert dict(zip(figures, lines, strict=True))["Time to the first token"] == 2
    assert min(lines) == 2


def test_points_lie_within_the_figure(runs: list[Run]):
    for points in re.findall(r'points="([^"]*)"', page_of(runs)):
        pairs = np.array([pair.split(",") for pair in points.split()], dtype=float)
        assert (pairs >= 0).all()
        assert (pairs[:, 0] <= 460).all()
        assert (pairs[:, 1] <= 260).all()


def test_preemptions_are_shown_if_there_are_any():
    trace = trace_of(*(TraceRequest(0.0, 16, 40, max_tokens=40) for _ in range(4)))
    profile = Profile({"reserve_blocks": "none", "choose_preemption": "recompute"})

    assert "Preemptions of a request" in page_of([run_of(trace, profile, num_blocks=32)])
    assert "Preemptions of a request" not in page_of([run_of(trace, num_blocks=256)])


def test_it_is_the_same_for_the_same_runs(runs: list[Run]):
    assert page_of(runs) == page_of(runs)


def test_one_request_of_one_token_makes_a_page():
    assert "<svg" in page_of([run_of(trace_of(TraceRequest(0.0, 4, 1)))])


def test_requests_that_cannot_run_make_a_page():
    text = page_of([run_of(trace_of(TraceRequest(0.0, 400, 1)))])

    assert "could not run at all" in text


def test_a_mean_over_time_weighs_by_duration():
    line = over_time("x", np.array([0.0, 1.0]), np.array([1.0, 299.0]), np.array([5.0, 2.0]))

    assert line.y[0] == pytest.approx(5)
    assert line.y[1:].tolist() == pytest.approx([2.0] * 299)


def test_a_mean_over_time_is_0_while_nothing_happens():
    line = over_time("x", np.array([30.0, 200.0]), np.array([60.0, 100.0]), np.array([5.0, 2.0]))

    assert line.y[[0, 29, 30, 89, 90, 199, 200, 299]].tolist() == pytest.approx(
        [0, 0, 5, 5, 0, 0, 2, 2]
    )


@pytest.mark.parametrize(
    ("low", "high"), [(0.031, 0.047), (0.0001, 90.0), (3.0, 3.0001), (0.01, 0.010000000000000002)]
)
def test_an_axis_has_some_round_values(low: float, high: float):
    drawn = plot("t", "s", "y", [Line("a", np.array([low, high]), np.ones(2))], log_x=True)
    ticks = re.findall(r'<text x="[\d.]+" y="236" class="x">([^<]*)<', drawn)

    assert 2 <= len({*ticks}) <= 12


def test_a_plot_of_nothing_is_none():
    assert plot("t", "x", "y", [Line("a", np.empty(0), np.empty(0))]) == ""
