"""First come, first served."""

from __future__ import annotations

from cadenza.policies.markers import hookimpl
from cadenza.policies.views import FloatArray, RequestColumns, StepView


class Fcfs:
    """Admit in order of arrival. A preempted request keeps its place by its first arrival."""

    name = "fcfs"

    @hookimpl
    def order_admissions(self, waiting: RequestColumns, step: StepView) -> FloatArray:
        return waiting.arrival.astype(float)
