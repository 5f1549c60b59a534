"""Victims are dropped and rebuilt."""

from __future__ import annotations

import numpy as np

from cadenza.policies.markers import hookimpl
from cadenza.policies.views import BoolArray, PreemptionCosts, RequestColumns, StepView


class Recompute:
    """Drop every victim's blocks; it comes back as a chunked prefill of prompt and output."""

    name = "recompute"

    @hookimpl
    def choose_preemption(
        self, victims: RequestColumns, costs: PreemptionCosts, step: StepView
    ) -> BoolArray:
        return np.zeros(len(victims), dtype=bool)
