"""The newest admission is the first victim."""

from __future__ import annotations

from cadenza.policies.markers import hookimpl
from cadenza.policies.views import FloatArray, RequestColumns, StepView


class Newest:
    """Preempt who was admitted last: those closest to completing keep their blocks."""

    name = "newest"

    @hookimpl
    def select_victims(self, running: RequestColumns, step: StepView) -> FloatArray:
        return -running.admission.astype(float)
