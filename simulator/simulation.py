"""A trace through the service's scheduler.

What decides is `Scheduler`, `Decisions` and `Profile` as they are in the engine; made up is which
tokens come, and by a `VirtualEngine` how long a step takes. As in the engine's loop, who arrives
while a step is computed is met by the next one.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from cadenza.policies.decisions import Decisions
from cadenza.policies.profile import Profile
from cadenza.scheduler.config import SchedulerConfig
from cadenza.scheduler.plan import StepOutcome, StepPlan, StepTimes
from cadenza.scheduler.request import Arrival, Refused
from cadenza.scheduler.scheduler import Scheduler
from cadenza.simulator.engine import Engine
from cadenza.simulator.errors import SimulatorError
from cadenza.simulator.journal import Journal
from cadenza.simulator.run import Run
from cadenza.simulator.trace import WHOLE, Prompts, Span, Trace

EOS = 0  # no prompt has it
_IDLE_S = 0.001  # until a scheduler that keeps everybody out is asked again
_TOLD_EVERY = 256  # steps
_MOST_SPAN_S = 1e9  # up to there a float tells microseconds

Progress = Callable[[int], None]


class Simulation:
    """One run. With a virtual engine nothing of the machine that it runs on matters."""

    def __init__(
        self,
        name: str,
        trace: Trace,
        config: SchedulerConfig,
        profile: Profile,
        engine: Engine,
        *,
        max_tokens: int = 0,
        measured: Span = WHOLE,
    ) -> None:
        """Prepare a run.

        Args:
            name: of the profile, in reports.
            trace: who asks for what.
            config: limits; `EOS` must be its only end token.
            profile: whose policies decide; fresh, as they remember.
            engine: what executes plans; fresh, as its clock has to be at 0.
            max_tokens: that requests ask for whose trace does not say it; 0: what they get.
            measured: what the run is to tell of; all of the trace is replayed in any case.

        Raises:
            SimulatorError: the trace is longer than the clock can be exact for.
        """
        if not trace.span_s <= _MOST_SPAN_S:
            raise SimulatorError(
                f"arrivals {trace.span_s:g} s apart are more than there is a clock for"
            )
        self._name, self._trace, self._config = name, trace, config
        self._engine, self._max_tokens = engine, max_tokens
        self._scheduler = Scheduler(config, Decisions(profile), engine.costs)
        self._prompts = Prompts(trace)
        num = len(trace.requests)
        self._own = np.array([self._prompts.own(index) for index in range(num)], dtype=np.int32)
        self._wanted = trace.output_tokens
        self._journal = Journal(trace, measured)
        self._num_arrived = 0

    def run(self, on_progress: Progress | None = None) -> Run:
        """Everything from the first arrival to the last token.

        `on_progress` is told now and then how many requests have ended.
        """
        outcome: StepOutcome | None = None
        while True:
            self._arrive()
            report, plan = self._scheduler.step(self._engine.now_s, outcome)
            self._journal.follow(report)
            if plan is not None:
                outcome = self._execute(plan)
                if on_progress is not None and self._journal.num_steps % _TOLD_EVERY == 0:
                    on_progress(self._num_arrived - self._num_here())
                continue
            outcome = None
            if not self._pass_time():
                return self._journal.run(self._name, self._config, self._scheduler.statistics())

    def _num_here(self) -> int:
        statistics = self._scheduler.statistics()
        return statistics.running + statistics.waiting

    def _arrive(self) -> None:
        """Add all who have come by now."""
        requests, now_s = self._trace.requests, self._engine.now_s
        while self._num_arrived < len(requests) and requests[self._num_arrived].arrival_s <= now_s:
            self._add(self._num_arrived)
            self._num_arrived += 1

    def _add(self, index: int) -> None:
        request, most = self._trace.requests[index], self._config.max_model_len
        if request.prompt_tokens >= most:  # whose ids may not even fit into memory
            said = f"{request.prompt_tokens} tokens leave no room to generate within max_model_len"
            self._journal.refuse(index, f"{said} {most}")
            return
        asked = request.max_tokens or self._max_tokens
        arrival = Arrival(
            request=index,
            prompt=self._prompts.prompt(index),
            max_tokens=max(asked, request.output_tokens),
            priority=request.priority,
            tenant=request.tenant,
            ttft_target_s=request.ttft_target_s,
            tpot_target_s=request.tpot_target_s,
        )
        try:
            self._scheduler.add(arrival, self._engine.now_s)
        except Refused as refusal:
            self._journal.refuse(index, str(refusal))

    def _execute(self, plan: StepPlan) -> StepOutcome:
        """Have the plan computed, and sample."""
        statistics, began_s = self._scheduler.statistics(), self._engine.now_s
        times = self._engine.execute(plan)
        self._journal.step(plan, statistics, began_s, self._engine.now_s)
        return self._sample(plan, times)

    def _sample(self, plan: StepPlan, times: StepTimes) -> StepOutcome:
        """Each request's own token, and the end where the trace has it."""
        requests = plan.sample_requests
        generated = self._journal.sample(requests, self._engine.now_s)
        ended = generated >= self._wanted[requests]
        return StepOutcome(
            step_id=plan.step_id,
            tokens=np.where(ended, np.int32(EOS), self._own[requests]),
            failed=np.zeros(len(requests), dtype=bool),
            times=times,
        )

    def _pass_time(self) -> bool:
        """Go on to when something may happen; False: nothing ever will."""
        is_last = self._num_arrived == len(self._trace.requests)
        if is_last and not self._scheduler.has_unfinished:
            return False
        times_s = [] if is_last else [self._trace.requests[self._num_arrived].arrival_s]
        if self._scheduler.has_unfinished:
            times_s.append(self._engine.now_s + _IDLE_S)
        self._engine.wait_until(min(times_s))
        return True
