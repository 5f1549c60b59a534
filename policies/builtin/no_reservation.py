"""Nothing is kept free for growth."""

from __future__ import annotations

import numpy as np

from cadenza.policies.markers import hookimpl
from cadenza.policies.views import IntArray, RequestColumns, StepView


class NoReservation:
    """Admit whatever fits now, as vLLM does. Decodes then over-commit and preempt."""

    name = "none"

    @hookimpl
    def reserve_blocks(
        self, running: RequestColumns, candidates: RequestColumns, step: StepView
    ) -> IntArray:
        return np.zeros(len(candidates) + 1, dtype=np.int64)
