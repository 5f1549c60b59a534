"""No request pushes out another."""

from __future__ import annotations

import numpy as np

from cadenza.policies.markers import hookimpl
from cadenza.policies.views import FloatArray, RequestColumns, StepView


class Nobody:
    """Whoever has a seat keeps it until it ends, or until memory runs short."""

    name = "nobody"

    @hookimpl
    def allow_displacement(
        self, candidate: RequestColumns, running: RequestColumns, step: StepView
    ) -> FloatArray:
        return np.zeros(len(running))
