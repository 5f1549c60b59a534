"""Victims are copied to the host."""

from __future__ import annotations

import numpy as np

from cadenza.policies.markers import hookimpl
from cadenza.policies.views import BoolArray, PreemptionCosts, RequestColumns, StepView


class Swap:
    """Want a swap for every victim, whatever it costs; the core recomputes where it cannot be."""

    name = "swap"

    @hookimpl
    def choose_preemption(
        self, victims: RequestColumns, costs: PreemptionCosts, step: StepView
    ) -> BoolArray:
        return np.ones(len(victims), dtype=bool)
