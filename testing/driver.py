"""Drives a scheduler step by step on a manual clock, and checks it after every step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cadenza.policies.decisions import Decisions
from cadenza.policies.profile import Profile
from cadenza.scheduler.config import SchedulerConfig
from cadenza.scheduler.costs import CostModel
from cadenza.scheduler.decisions import Decision
from cadenza.scheduler.plan import Runner, StepOutcome, StepPlan
from cadenza.scheduler.report import StepReport
from cadenza.scheduler.request import Arrival
from cadenza.scheduler.scheduler import Scheduler
from cadenza.scheduler.states import FinishReason
from cadenza.testing.clock import ManualClock
from cadenza.testing.fake_runner import EOS, FakeRunner

STEP_S = 0.01


class Driver:
    """A scheduler, a runner (the fake one unless given), and a record of what each request got.

    Limits are small unless given: 32 blocks of 4 tokens, 8 seats, 32 tokens a step, no watermark.
    """

    def __init__(
        self,
        profile: Profile | None = None,
        runner: Runner | None = None,
        costs: CostModel | None = None,
        *,
        clock: ManualClock | None = None,
        decisions: Decisions | None = None,
        **limits: Any,
    ) -> None:
        """Build all of it.

        Args:
            profile: whose policies decide; None: the defaults.
            runner: what computes tokens.
            costs: what preemptions are priced with; None: what the scheduler measures.
            clock: advanced by STEP_S in each step; None: one of its own.
            decisions: in place of `profile`, for whoever wants to see how policies are asked.
            limits: fields of `SchedulerConfig`.
        """
        small: dict[str, Any] = {
            "num_blocks": 32,
            "block_size": 4,
            "max_model_len": 64,
            "max_num_seqs": 8,
            "max_num_batched_tokens": 32,
            "eos_token_ids": frozenset({EOS}),
            "watermark": 0.0,
        }
        config = SchedulerConfig(**{**small, **limits})
        self.decisions = decisions or Decisions(profile or Profile())
        self.scheduler = Scheduler(config, self.decisions, costs)
        self.runner = runner or FakeRunner(
            config.num_blocks, config.block_size, config.num_host_blocks
        )
        self.clock = clock or ManualClock()
        self.plan: StepPlan | None = None
        self.outcome: StepOutcome | None = None
        self.tokens: dict[int, list[int]] = {}
        self.ends: dict[int, FinishReason] = {}
        self.admitted: list[int] = []  # in order, once for each time
        self.cached: dict[int, int] = {}  # tokens found at the latest admission
        self.preempted: list[int] = []  # in order, once for each time
        self.decided: list[Decision] = []

    @property
    def now_s(self) -> float:
        return self.clock.now_s

    def add(self, request: int, prompt: Sequence[int], max_tokens: int = 4, **fields: Any) -> None:
        """Let a request arrive now."""
        ids = np.array(prompt, dtype=np.int32)
        arrival = Arrival(request=request, prompt=ids, max_tokens=max_tokens, **fields)
        self.scheduler.add(arrival, self.now_s)
        if isinstance(self.runner, FakeRunner):
            self.runner.choice_of |= {each: each - request for each in arrival.requests}

    def step(self) -> StepReport:
        """One step: the last outcome goes in, the invariants are checked, the plan is executed."""
        self.clock.advance(STEP_S)
        report, self.plan = self.scheduler.step(self.now_s, self.outcome)
        self.scheduler.check_invariants()
        self._record(report)
        if self.plan is not None:
            assert self.plan.num_tokens <= self.scheduler.config.max_num_batched_tokens
        self.outcome = self.runner.launch(self.plan)() if self.plan else None
        return report

    def run(self, most_steps: int = 10_000) -> None:
        """Step until nothing is left, then assert that every block has come back."""
        for _ in range(most_steps):
            if not self.scheduler.has_unfinished:
                break
            self.step()
        assert not self.scheduler.has_unfinished, f"unfinished after {most_steps} steps"
        statistics = self.scheduler.statistics()
        assert statistics.free_blocks + statistics.cached_blocks == statistics.total_blocks
        self.scheduler.check_invariants()

    def _record(self, report: StepReport) -> None:
        rows = zip(report.requests, report.tokens, report.finished, strict=True)
        for request, token, code in ((int(r), int(t), int(c)) for r, t, c in rows):
            assert request not in self.ends, "something arrived after the end"
            if token >= 0:
                self.tokens.setdefault(request, []).append(token)
            if code != FinishReason.NOT.value:
                self.ends[request] = FinishReason(code)
        admitted = report.admitted.tolist()
        self.admitted += admitted
        self.cached.update(zip(admitted, report.admitted_cached.tolist(), strict=True))
        self.preempted += report.preempted.tolist()
        self.decided += report.decisions
