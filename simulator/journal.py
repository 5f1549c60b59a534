"""What happens in a run, noted as it happens."""

from __future__ import annotations

from collections import Counter

import numpy as np

from cadenza.scheduler.config import SchedulerConfig
from cadenza.scheduler.decisions import Admitted, Finished, Preempted
from cadenza.scheduler.plan import Int64Array, StepPlan
from cadenza.scheduler.report import Statistics, StepReport
from cadenza.scheduler.states import FinishReason
from cadenza.simulator.run import COUNTED, Run, Steps, Tokens, longest_gaps
from cadenza.simulator.trace import WHOLE, Span, Trace


class Journal:
    """Columns by request, steps and tokens, of which a `Run` is made in the end."""

    def __init__(self, trace: Trace, measured: Span = WHOLE) -> None:
        """Note what happens to the requests of `trace`, for the run of those in `measured`."""
        self._trace, self._measured = trace, measured
        self._before: Statistics | None = None  # as the first measured step began
        self._after: Statistics | None = None  # as the first one behind those did
        num = len(trace.requests)
        self._generated = np.zeros(num, dtype=np.int64)
        self._admitted_s, self._first_s, self._last_s = (np.full(num, np.nan) for _ in range(3))
        self._preemptions = np.zeros(num, dtype=np.int64)
        self._refused: list[tuple[int, str]] = []
        self._failed: list[int] = []
        self._causes: Counter[str] = Counter()
        self._swapped_tokens = 0
        self._steps: list[tuple[float, float, int, int, int, int]] = []
        self._sampled: list[Int64Array] = []
        self._sampled_s: list[float] = []

    @property
    def num_steps(self) -> int:
        return len(self._steps)

    def refuse(self, request: int, why: str) -> None:
        """A request could not run at all."""
        self._refused.append((request, why))

    def follow(self, report: StepReport) -> None:
        """Who entered, who left and why."""
        for decision in report.decisions:
            match decision:
                case Admitted():
                    self._admitted_s[decision.request] = decision.time_s
                case Preempted():
                    self._preemptions[decision.request] += 1
                    if self._measured.holds(decision.time_s):
                        self._causes[decision.cause.value] += 1
                case Finished(reason=FinishReason.FAILED):
                    self._failed.append(decision.request)

    def step(self, plan: StepPlan, statistics: Statistics, began_s: float, ended_s: float) -> None:
        """A plan was executed; `statistics` are from when it was made."""
        held = statistics.total_blocks - statistics.free_blocks - statistics.cached_blocks
        counts = plan.num_tokens, statistics.running, statistics.waiting, held
        self._steps.append((began_s, ended_s - began_s, *counts))
        if began_s >= self._measured.end_s:
            self._after = self._after or statistics
        elif began_s >= self._measured.begin_s:
            self._before = self._before or statistics
            self._swapped_tokens += plan.block_size * len(plan.copies.swap_out)

    def sample(self, requests: Int64Array, now_s: float) -> Int64Array:
        """Each of them gets a token; returns how many they have."""
        generated = self._generated[requests] + 1
        self._generated[requests] = generated
        self._first_s[requests[generated == 1]] = now_s
        self._last_s[requests] = now_s
        self._sampled.append(requests)
        self._sampled_s.append(now_s)
        return generated

    def run(self, name: str, config: SchedulerConfig, statistics: Statistics) -> Run:
        """All that was measured, once nothing is left to do. `statistics` are the last ones."""
        trace, begin_s = self._trace, self._measured.begin_s
        tokens, kept = self._tokens(), trace.within(self._measured)
        first, end = kept.start, kept.stop
        steps = self._measured_steps()
        return Run(
            name=name,
            trace=trace.part(kept, begin_s),
            parts=(end - first,),
            ends_s=(steps.end_s,),
            config=config,
            admitted_s=self._admitted_s[kept] - begin_s,
            first_s=self._first_s[kept] - begin_s,
            last_s=self._last_s[kept] - begin_s,
            generated=self._generated[kept],
            longest_gap_s=longest_gaps(tokens, len(trace.requests))[kept],
            preemptions=self._preemptions[kept],
            refused=[(index - first, why) for index, why in self._refused if first <= index < end],
            failed=[index - first for index in self._failed if first <= index < end],
            causes=dict(sorted(self._causes.items())),
            swapped_tokens=self._swapped_tokens,
            statistics=self._counted(statistics),
            steps=steps,
            tokens=tokens.part(self._measured, kept),
        )

    def _counted(self, last: Statistics) -> Statistics:
        """What was counted in the time that is measured."""
        now = self._after or last
        if not self._measured.begin_s:
            return now
        before = self._before or now  # no step began in it
        return now._replace(
            **{name: getattr(now, name) - getattr(before, name) for name in COUNTED}
        )

    def _tokens(self) -> Tokens:
        return Tokens(
            request=np.concatenate([np.empty(0, dtype=np.int64), *self._sampled]),
            time_s=np.repeat(self._sampled_s, [len(each) for each in self._sampled]),
        )

    def _measured_steps(self) -> Steps:
        columns = np.array(self._steps, dtype=np.float64).reshape(-1, 6).T
        columns = columns[:, slice(*np.searchsorted(columns[0], self._measured))]
        tokens, running, waiting, held = columns[2:].astype(np.int64)
        return Steps(
            began_s=columns[0] - self._measured.begin_s,
            took_s=columns[1],
            tokens=tokens,
            running=running,
            waiting=waiting,
            held_blocks=held,
        )
