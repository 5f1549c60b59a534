"""Microseconds a step under every built-in order: the last table of `make bench-scheduler`.

1,024 rows run and 10,000 wait in turnover. Prompts of those who wait share prefixes, and requests
have tenants, priorities, targets and predicted lengths, so that every order has something to go by;
the default order is measured under the same load, and takes turns with each of the others, so that
a machine that is faster at times is so for both.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import mean, median
from typing import Any, NamedTuple

import numpy as np
import scheduler_load as load
from our_scheduler import Ours

from cadenza.policies import StepView, hookimpl
from cadenza.policies.builtin import BUILTIN, DEFAULTS
from cadenza.policies.per_request import per_request
from cadenza.policies.profile import Profile

RUNNING, WAITING = 1024, 10_000
GROUPS, PREFIX = 64, 256  # of prompts, and tokens that each has in common
SETTLE_ROUNDS = 12

DEFAULT = DEFAULTS["order_admissions"]
MOST_RATIO = 1.5  # to the default's step
MOST_US = 2000.0
CHEAP, DEAR = ("priority", "prefix-aware"), ("fair-share", "prefix-fair", "edf")


class PerRequest:
    """What an author without arrays writes: the order of `priority`, one request at a time."""

    name = "per_request"

    @hookimpl
    @per_request
    def order_admissions(self, request: Any, step: StepView) -> float:
        return float(request.priority * 1e6 + request.prompt_tokens)


class SharedTurnover(load.Case):
    """Turnover, in which requests that come when all seats are taken share prefixes."""

    def prompt(self, request: int) -> load.Int32Array:
        prompt = super().prompt(request)
        if request >= self.running:
            rng = np.random.default_rng((load.SEED, 2, request % GROUPS))
            prompt[:PREFIX] = rng.integers(load.VOCABULARY, size=PREFIX, dtype=np.int32)
        return prompt


def fields(request: int) -> dict[str, Any]:
    """What an order may go by, of a request."""
    rng = np.random.default_rng((load.SEED, 3, request))
    return {
        "priority": int(rng.integers(8)),
        "tenant": f"tenant-{rng.integers(32)}",
        "ttft_target_s": float(rng.choice((5.0, 60.0, 600.0, np.inf))),
        "predicted_tokens": int(rng.integers(1, 1024)),
    }


class Row(NamedTuple):
    """One line of the table, in microseconds."""

    order: str
    mean: float
    median: float
    p99: float
    default: float  # mean of the default's steps between these

    @property
    def ratio(self) -> float:
        return self.mean / self.default

    @property
    def verdict(self) -> str:
        if self.order in CHEAP:
            told = "met" if self.ratio <= MOST_RATIO else "NOT MET"
            return f"at most {MOST_RATIO} times {DEFAULT}'s: {told}"
        if self.order in DEAR:
            return f"at most {MOST_US:,.0f} us: {'met' if self.mean <= MOST_US else 'NOT MET'}"
        return ""

    def figures(self) -> dict[str, Any]:
        return {"order": self.order, "us": round(self.mean, 1), "ratio": round(self.ratio, 2)}

    def __str__(self) -> str:
        return (
            f"{self.order:17}{self.mean:9,.0f}{self.median:9,.0f}{self.p99:9,.0f}"
            f"{self.default:9,.0f}{self.ratio:8.2f}  {self.verdict}"
        ).rstrip()


HEADER = f"{'':17}{'mean':>9}{'median':>9}{'p99':>9}{DEFAULT:>9}{'ratio':>8}  target"


def measure_orders(clock: load.Clock) -> Iterator[Row]:
    """A row for each built-in order, and one for an order that looks at one request at a time."""
    policies = {**BUILTIN, PerRequest.name: PerRequest}
    names = [name for name, each in policies.items() if hasattr(each, "order_admissions")]
    default = _load(DEFAULT, policies, clock)
    for name in names:
        side = _load(name, policies, clock)
        ours, others = load.Measured([], [], [], 0), load.Measured([], [], [], 0)
        for _ in range(load.STEPS // load.ROUND):
            ours = ours.and_then(side.measure())
            others = others.and_then(default.measure())
        us = ours.steps_us
        p99 = float(np.percentile(us, 99))
        yield Row(name, mean(us), median(us), p99, mean(others.steps_us))


def _load(order: str, policies: dict[str, type], clock: load.Clock) -> load.Load:
    case = SharedTurnover("turnover", RUNNING, WAITING)
    profile = Profile({"order_admissions": order}, policies)
    side = load.Load(case, Ours(RUNNING, clock, profile, fields))
    for _ in range(SETTLE_ROUNDS):  # until some of those who wait starve, as they will ever after
        side.measure()
    return side
