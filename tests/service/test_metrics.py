"""What the front measures of requests, on a clock of the test's."""

from __future__ import annotations

import pytest

from cadenza.service.metrics import (
    DECISION_KINDS,
    NO_TENANT,
    OTHER_TENANTS,
    TOKEN_S,
    TTFT_S,
    Histogram,
    Metrics,
)
from cadenza.service.request_timer import RequestTimer
from cadenza.wire.messages import Counters, Decision


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Watched:
    """A request, and what has been measured since."""

    def __init__(self, tenant: str = "", tenants: tuple[str, ...] = (), n: int = 1) -> None:
        self.clock = Clock()
        self.metrics = Metrics(tenants)
        self.timer = RequestTimer(self.metrics, self.clock)
        self.timer.launched(tenant=tenant, prompt_tokens=20, n=n, max_tokens=40)
        self.timer.accepted()

        self.choices = [self.timer.choice() for _ in range(n)]

    def after(self, seconds: float) -> RequestTimer:
        self.clock.now_s += seconds
        return self.timer

    def token_after(self, seconds: float, choice: int = 0) -> None:
        self.clock.now_s += seconds
        self.choices[choice].token(self.clock.now_s)


def total(histogram: Histogram) -> tuple[float, float]:
    """How many observations, and their sum."""
    return histogram.cumulative()[-1][1], round(histogram.sum, 6)


def test_a_request_is_measured_once_whatever_its_choices_and_preemptions():
    watched = Watched(n=2)
    watched.after(1.0).seated(cached_tokens=16)
    watched.token_after(0.5, 0)
    watched.after(0.25).preempted()
    watched.token_after(0.25, 1)
    watched.token_after(1.0, 0)
    watched.token_after(0.5, 1)
    watched.after(0.1).ended("length")
    metrics = watched.metrics

    assert total(metrics.queue_time) == (1, 1.0)
    assert total(metrics.time_to_first_token) == (1, 1.5)
    assert total(metrics.inter_token_latency) == (2, 3.0)
    assert total(metrics.request_latency) == (1, 3.6)
    assert total(metrics.prefill_time) == (1, 0.5)
    assert total(metrics.decode_time) == (1, 2.0)
    assert total(metrics.inference_time) == (1, 2.5)
    assert total(metrics.time_per_output_token) == (1, 1.5)
    assert total(metrics.request_prompt_tokens) == (1, 20)
    assert total(metrics.request_computed_prompt_tokens) == (1, 4)
    assert total(metrics.request_generation_tokens) == (1, 4)
    assert total(metrics.longest_choice) == (1, 2)
    assert total(metrics.params_n) == (1, 2)
    assert total(metrics.params_max_tokens) == (1, 40)
    assert total(metrics.num_preemptions) == (1, 1)
    assert (metrics.prompt_tokens, metrics.generation_tokens) == (20, 4)
    assert (metrics.cached_tokens, metrics.computed_prompt_tokens) == (16, 4)
    assert metrics.finished["length"] == 1


@pytest.mark.parametrize("reason", ["abort", "deadline", "shed", "error"])
def test_what_did_not_end_by_itself_has_no_length(reason: str):
    watched = Watched()
    watched.after(1.0).seated(cached_tokens=0)
    watched.after(1.0).ended(reason)

    assert watched.metrics.finished[reason] == 1
    assert total(watched.metrics.queue_time) == (1, 1.0)
    assert total(watched.metrics.request_latency) == (0, 0.0)
    assert total(watched.metrics.request_generation_tokens) == (0, 0.0)


def test_one_token_has_no_time_between_tokens():
    watched = Watched()
    watched.after(1.0).seated(cached_tokens=0)
    watched.token_after(1.0, 0)
    watched.after(0.0).ended("stop")

    assert total(watched.metrics.time_per_output_token) == (0, 0.0)
    assert total(watched.metrics.decode_time) == (1, 0.0)


def test_only_named_tenants_have_series_of_their_own():
    for tenant, counted in (
        ("acme", "acme"),
        ("", NO_TENANT),
        ("evil", OTHER_TENANTS),
        (NO_TENANT, OTHER_TENANTS),  # who calls itself so has a tenant, and it was not named
        (OTHER_TENANTS, OTHER_TENANTS),
    ):
        watched = Watched(tenant, tenants=("acme",))
        watched.after(0.5).seated(cached_tokens=0)
        watched.token_after(0.5, 0)
        watched.after(0.5).ended("stop")
        metrics = watched.metrics

        assert {*metrics.tenants} == {"acme", NO_TENANT, OTHER_TENANTS}
        mine = metrics.tenants.pop(counted)
        assert (mine.prompt_tokens, mine.generation_tokens) == (20, 1)
        assert mine.finished["stop"] == 1
        assert total(mine.queue_time) == (1, 0.5)
        assert total(mine.time_to_first_token) == (1, 1.0)
        for other in metrics.tenants.values():
            assert (other.prompt_tokens, other.generation_tokens) == (0, 0)
            assert not sum(other.finished.values())


def test_steps_are_measured_by_what_they_computed():
    metrics = Metrics()
    for computed in (16, 16, 20, 20 + 256):
        metrics.count_step(Counters(computed_tokens=computed))

    assert total(metrics.iteration_tokens) == (3, 276)


def test_decisions_are_counted_by_kinds_that_are_known():
    metrics = Metrics()
    metrics.count_decisions([Decision(kind, 1, 1, 0.0) for kind in ("parked", "parked", "new")])

    assert metrics.decisions == {**dict.fromkeys(DECISION_KINDS, 0), "parked": 2}


def test_the_kinds_are_those_of_the_scheduler():
    from cadenza.engine.frames import _OUTLINES

    # What the front notes itself, when there is no engine to do it
    kinds = {outline.kind for outline in _OUTLINES.values()} | {"interrupted"}
    assert {*DECISION_KINDS} == kinds


def test_short_times_are_told_apart():
    for bounds in (TTFT_S, TOKEN_S):
        assert sum(bound < 0.01 for bound in bounds) >= 4
        assert list(bounds) == sorted(set(bounds))


def test_a_bound_belongs_to_the_bucket_below_it():
    histogram = Histogram((1, 2.5))
    for value in (0.5, 1, 2, 2, 99, 0):
        histogram.observe(value)

    assert histogram.cumulative() == [("1.0", 3.0), ("2.5", 5.0), ("+Inf", 6.0)]
    assert histogram.sum == 104.5
