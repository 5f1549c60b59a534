"""Hit rate and time to first token of every built-in order, under prompts with shared prefixes.

The scheduler is the real one, with the default policies beside the order; the model is a cost: a
step takes FIXED_S, and TOKEN_S for each token that it computes, prompts' and outputs' alike. The
clock advances by that, so that every run of an order gives the same figures on any machine.

The load: each request begins with the prefix of one of `groups` groups, as if with its system
prompt, chosen at random, and goes on with a suffix of its own. All prefixes together take several
times the cache. A number of requests wait from the start, and whoever is admitted is followed by a
new arrival, so that the queue is never empty and equally long for all orders, until all of
`requests` have come; then it drains. Every request counts, the last included. Priorities, tenants,
targets and predicted lengths, for the orders that go by them, have nothing to do with the prefixes.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cadenza.policies.builtin import BUILTIN
from cadenza.policies.decisions import Decisions
from cadenza.policies.profile import Profile
from cadenza.scheduler.config import SchedulerConfig
from cadenza.scheduler.plan import StepOutcome, StepPlan, StepTimes
from cadenza.scheduler.request import Arrival
from cadenza.scheduler.scheduler import Scheduler

sys.path.append(str(Path(__file__).parent))
from machine import heading

FIXED_S, TOKEN_S = 12e-3, 35e-6  # about an 8B model on one GPU

FLOOR, SUBJECT = "fcfs", "prefix-aware"
LEAST_RATIO = 1.3
ORDERS = [FLOOR, SUBJECT] + [
    name
    for name, policy in BUILTIN.items()
    if hasattr(policy, "order_admissions") and name not in (FLOOR, SUBJECT)
]


class Load(NamedTuple):
    """A workload, and the limits of the scheduler that it meets."""

    groups: int = 64
    prefix: int = 1024  # tokens of each group's
    suffix: tuple[int, int] = (16, 128)  # tokens, least and most
    output: tuple[int, int] = (8, 32)
    requests: int = 2000
    waiting: int = 256
    seats: int = 16
    blocks: int = 2048  # of 16 tokens; half of all prefixes
    budget: int = 2048  # tokens a step
    seed: int = 20_261

    def arrivals(self) -> list[Arrival]:
        """All requests, in the order in which they come."""
        rng = np.random.default_rng(self.seed)
        prefixes = rng.integers(1, 30_000, (self.groups, self.prefix), dtype=np.int32)
        return [self._arrival(rng, request, prefixes) for request in range(self.requests)]

    def _arrival(
        self, rng: np.random.Generator, request: int, prefixes: np.ndarray[Any, Any]
    ) -> Arrival:
        length = int(rng.integers(*self.suffix, endpoint=True))
        suffix = rng.integers(1, 30_000, length, dtype=np.int32)
        output = int(rng.integers(*self.output, endpoint=True))
        return Arrival(
            request=request,
            prompt=np.concatenate((prefixes[rng.integers(self.groups)], suffix)),
            max_tokens=output,
            ignore_eos=True,
            priority=int(rng.integers(4)),
            tenant=f"tenant-{rng.integers(8)}",
            ttft_target_s=float(rng.choice((2.0, 10.0, 60.0))),
            predicted_tokens=output,
        )

    def config(self) -> SchedulerConfig:
        return SchedulerConfig(
            num_blocks=self.blocks,
            block_size=16,
            max_model_len=self.prefix + self.suffix[1] + self.output[1],
            max_num_seqs=self.seats,
            max_num_batched_tokens=self.budget,
        )


class Served(NamedTuple):
    """What an order made of a load."""

    order: str
    hit_rate: float  # of all prompt tokens, those found in the cache
    mean_ttft_s: float
    p99_ttft_s: float
    most_ttft_s: float
    took_s: float  # on the clock of the load

    def figures(self, floor: Served) -> dict[str, Any]:
        """Plain numbers, and how many times better than the floor's."""
        return {
            "order": self.order,
            "hit_rate": round(self.hit_rate, 4),
            "mean_ttft_s": round(self.mean_ttft_s, 3),
            "p99_ttft_s": round(self.p99_ttft_s, 3),
            "hit_rate_ratio": round(self.hit_rate / floor.hit_rate, 2),
            "mean_ttft_ratio": round(floor.mean_ttft_s / self.mean_ttft_s, 2),
            "p99_ttft_ratio": round(floor.p99_ttft_s / self.p99_ttft_s, 2),
        }

    def row(self, floor: Served) -> str:
        ratios = list(self.figures(floor).values())[-3:]
        return (
            f"{self.order:17}{self.hit_rate:9.3f}{self.mean_ttft_s:11.2f}{self.p99_ttft_s:10.2f}"
            f"{self.most_ttft_s:10.2f}{self.took_s:8.1f}"
            + "".join(f"{ratio:10.2f}" for ratio in ratios)
        )


HEADER = (
    f"{'':17}{'hit rate':>9}{'mean TTFT':>11}{'p99':>10}{'longest':>10}{'took':>8}"
    f"{'hits':>10}{'mean':>10}{'p99':>10}"
)


def serve(order: str, load: Load) -> Served:
    """Serve the whole load, from the first arrival to the last token."""
    scheduler = Scheduler(load.config(), Decisions(Profile({"order_admissions": order})))
    to_come = iter(load.arrivals())
    arrived_s, ttft_s = np.zeros(load.requests), np.full(load.requests, np.nan)
    now_s, newcomers, outcome = 0.0, load.waiting, None
    while True:
        for _, arrival in zip(range(newcomers), to_come, strict=False):
            scheduler.add(arrival, now_s)
            arrived_s[arrival.request] = now_s
        report, plan = scheduler.step(now_s, outcome)
        if plan is None:
            break
        newcomers = len(report.admitted) - len(report.preempted)
        took_s = FIXED_S + TOKEN_S * plan.num_tokens
        now_s += took_s
        outcome = _sample(plan, took_s)
        first = plan.sample_requests[np.isnan(ttft_s[plan.sample_requests])]
        ttft_s[first] = now_s - arrived_s[first]
    assert not scheduler.has_unfinished
    statistics = scheduler.statistics()
    return Served(
        order,
        statistics.prefix_hits / statistics.prefix_queries,
        float(ttft_s.mean()),
        float(np.percentile(ttft_s, 99)),
        float(ttft_s.max()),
        now_s,
    )


def _sample(plan: StepPlan, took_s: float) -> StepOutcome:
    num = len(plan.samples)
    return StepOutcome(
        step_id=plan.step_id,
        tokens=(1 + plan.sample_requests % 30_000).astype(np.int32),
        failed=np.zeros(num, dtype=bool),
        times=StepTimes(forward_s=took_s),
    )


def verdicts(figures: dict[str, Any]) -> list[str]:
    """What is aimed at, what was measured, and whether that meets it."""
    lines = []
    for what, name in (("hit rate", "hit_rate_ratio"), ("mean TTFT", "mean_ttft_ratio")):
        told = "met" if figures[name] >= LEAST_RATIO else "NOT MET"
        lines.append(
            f"{SUBJECT}: {what} {figures[name]:.2f} times better than {FLOOR}'s, "
            f"target {LEAST_RATIO}: {told}"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=ORDERS, help=f"this order alone, beside {FLOOR}")
    for name, default in Load._field_defaults.items():
        if isinstance(default, int):
            parser.add_argument(f"--{name}", type=int, default=default, help=f"default: {default}")
    options = parser.parse_args()
    load = Load(**{name: value for name, value in vars(options).items() if name != "only"})
    print(heading())
    print(load)
    print("Seconds on the clock of the load; the ratios say how many times better than fcfs.")
    print(HEADER)
    orders = [FLOOR, options.only] if options.only else ORDERS
    floor, figures = None, {}
    for order in dict.fromkeys(orders):
        served = serve(order, load)
        floor = floor or served
        print(served.row(floor), flush=True)
        figures[order] = served.figures(floor)
    for line in verdicts(figures[SUBJECT]) if SUBJECT in figures else ():
        print(line)
    print(json.dumps({"orders": list(figures.values())}))


if __name__ == "__main__":
    main()
