"""The most urgent request first, and whoever waits becomes more urgent."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cadenza.policies.markers import hookimpl
from cadenza.policies.views import FloatArray, RequestColumns, StepView


class Priority:
    """Admit the lowest priority number first; equals keep their order of arrival.

        score = priority - floor((now - arrival) / aging_s)

    The key of vLLM's `priority` scheduling, (priority, arrival), with aging: a request is one more
    urgent for every `aging_s` since its arrival, so that nobody who arrives `aging_s` times the
    difference of their priorities later comes before it. `aging_s = inf` is vLLM's strict order,
    under which only the guard helps the least urgent class.

    It loses under long overload, where old unimportant requests come before new important ones.
    Displacement and victims go by the priority alone: a request that aging let in may be pushed out
    by a more urgent one, let in and pushed out again, until it was preempted too often for that.
    """

    name = "priority"

    @dataclass(frozen=True)
    class Options:
        """`aging_s`: seconds from arrival that count as one step of priority."""

        aging_s: float = 60.0

        def __post_init__(self) -> None:
            if not self.aging_s >= 1e-3:
                raise ValueError("aging_s must be at least 0.001 (a millisecond)")

    def __init__(self, options: Options | None = None) -> None:
        self._aging_s = (options or self.Options()).aging_s

    @hookimpl
    def order_admissions(self, waiting: RequestColumns, step: StepView) -> FloatArray:
        aged = np.floor((step.now_s - waiting.arrival_s) / self._aging_s)
        return waiting.priority.astype(np.float64) - aged
