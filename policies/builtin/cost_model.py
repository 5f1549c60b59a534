"""Victims are swapped where that is measurably cheaper than to compute them again."""

from __future__ import annotations

import numpy as np

from cadenza.policies.markers import hookimpl
from cadenza.policies.views import BoolArray, PreemptionCosts, RequestColumns, StepView

HYSTERESIS = 0.2  # how much cheaper a swap must be, since both costs are estimates


class CheapestWayBack:
    """Swap iff `swap_s * (1 + HYSTERESIS) < recompute_s`, while the host has room.

    Victims claim the host's free blocks in the order in which they are given. The first that does
    not fit ends the claims, so that no later one gets room by being small. Whoever cannot be
    swapped (+inf) and whoever has no measured cost (0) is recomputed.

    The cost model of the swap-or-recompute literature in its simplest form: seconds of the engine
    against seconds of the engine. What the two estimates leave out is said where they are made.
    """

    name = "cost-model"

    @hookimpl
    def choose_preemption(
        self, victims: RequestColumns, costs: PreemptionCosts, step: StepView
    ) -> BoolArray:
        cheaper = costs.swap_s * (1 + HYSTERESIS) < costs.recompute_s
        claimed = np.cumsum(np.where(cheaper, costs.swap_blocks, 0))
        chosen: BoolArray = cheaper & (claimed <= costs.free_host_blocks)
        return chosen
