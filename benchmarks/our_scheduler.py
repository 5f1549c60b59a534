"""Our side of `make bench-scheduler`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import scheduler_load as load

from cadenza.engine.frames import step_frame
from cadenza.policies.decisions import Decisions
from cadenza.policies.profile import Profile
from cadenza.scheduler.config import SchedulerConfig
from cadenza.scheduler.plan import StepOutcome, StepPlan, StepTimes
from cadenza.scheduler.request import Arrival
from cadenza.scheduler.scheduler import Scheduler
from cadenza.wire.codec import encode

FORWARD_S = 0.05
EOS = 2
MOST_REQUESTS = 1 << 20

Fields = Callable[[int], Mapping[str, Any]]


class Ours:
    """A scheduler of ours, and a runner that samples at random."""

    def __init__(
        self,
        num_running: int,
        clock: load.Clock,
        profile: Profile | None = None,
        fields: Fields = lambda request: {},
    ) -> None:
        """The default policies unless others are given; `fields` of each request's `Arrival`."""
        config = SchedulerConfig(
            num_blocks=load.NUM_BLOCKS,
            block_size=load.BLOCK_SIZE,
            max_model_len=load.MAX_MODEL_LEN,
            max_num_seqs=num_running,
            max_num_batched_tokens=load.TOKEN_BUDGET,
            eos_token_ids=frozenset({EOS}),
        )
        self._scheduler = Scheduler(config, Decisions(profile or Profile()))
        self._clock = clock
        self._fields = fields
        self._outcome: StepOutcome | None = None
        self._now_s = 0.0
        self._rng = np.random.default_rng(load.SEED)
        self._left = np.zeros(MOST_REQUESTS, dtype=np.int32)  # tokens to come, by request

    def add(self, request: int, prompt: load.Int32Array, max_tokens: int) -> float:
        self._left[request] = max_tokens
        arrival = Arrival(
            request=request,
            prompt=prompt,
            max_tokens=max_tokens,
            ignore_eos=True,
            **self._fields(request),
        )
        started = self._clock()
        self._scheduler.add(arrival, self._now_s)
        return self._clock() - started

    def step(self) -> load.Stepped:
        self._now_s += FORWARD_S
        started = self._clock()
        report, plan = self._scheduler.step(self._now_s, self._outcome)
        encode(step_frame(report, self._outcome, self._scheduler.statistics(), received=0))
        took_s = self._clock() - started
        assert plan is not None, "nothing was planned"
        self._outcome = self._sample(plan)
        self._left[plan.sample_requests] -= 1
        ending = int((self._left[plan.sample_requests] == 0).sum())
        return load.Stepped(took_s, len(report.admitted), ending)

    def _sample(self, plan: StepPlan) -> StepOutcome:
        num = len(plan.samples)
        return StepOutcome(
            step_id=plan.step_id,
            tokens=self._rng.integers(load.VOCABULARY, size=num, dtype=np.int32),
            failed=np.zeros(num, dtype=bool),
            times=StepTimes(forward_s=FORWARD_S),
        )
