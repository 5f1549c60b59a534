"""How long the engine may say nothing while it computes, told to the front before it does.

Whoever watches takes a longer silence for a hang.
"""

from __future__ import annotations

from cadenza.scheduler.costs import CostModel
from cadenza.scheduler.plan import StepPlan

_MARGIN = 10.0  # a pass that takes so many times as long as expected has hung, or nearly
_COMPILING_S = 120.0
_COMPILING_PASSES = 32  # in which most shapes occur for the first time


class Patience:
    """What to allow for each pass, by what passes have taken so far."""

    def __init__(self, costs: CostModel, *, compiles: bool) -> None:
        """`compiles`: whether kernels are compiled when they are first called."""
        self._costs = costs
        self._num_compiling = _COMPILING_PASSES if compiles else 0
        self.is_compiling = False  # whether kernels may be in the pass that was asked about last

    def of(self, plan: StepPlan) -> float:
        """Seconds for the pass of this plan, which is about to begin."""
        self.is_compiling = self._num_compiling > 0
        self._num_compiling -= self.is_compiling
        allowed_s = _MARGIN * self._costs.pass_s(plan)
        return max(allowed_s, _COMPILING_S) if self.is_compiling else allowed_s
