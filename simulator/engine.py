"""What executes plans, and whose time it takes: here nobody's."""

from __future__ import annotations

from typing import Protocol

from cadenza.scheduler.costs import CostModel
from cadenza.scheduler.plan import StepPlan, StepTimes
from cadenza.simulator.machines import Machine
from cadenza.simulator.step_time import work_of


class Engine(Protocol):
    """Executes plans on a clock of its own. Which tokens come is not its business."""

    costs: CostModel  # what its scheduler begins with

    @property
    def now_s(self) -> float:
        """Seconds since the beginning of the trace."""
        ...

    def execute(self, plan: StepPlan) -> StepTimes:
        """Compute the plan; the clock is behind it then."""
        ...

    def wait_until(self, time_s: float) -> None:
        """Do nothing up to this time, if it has not come already."""
        ...


class VirtualEngine:
    """A machine that is only a cost, on a clock that goes on by that."""

    def __init__(self, machine: Machine, block_size: int) -> None:
        self._step_time = machine.step_time
        self._block_s = machine.copy_token_s * block_size
        self.now_s = 0.0
        self.costs = CostModel(token_s=machine.step_time.token_s, copy_block_s=self._block_s)

    def execute(self, plan: StepPlan) -> StepTimes:
        """Let the time of the pass and of its copies go by."""
        work = work_of(plan.num_new, plan.num_context)
        times = StepTimes(
            forward_s=self._step_time.seconds(work) if plan.num_rows else 0.0,
            swap_out_s=self._block_s * len(plan.copies.swap_out),
            swap_in_s=self._block_s * len(plan.copies.swap_in),
        )
        self.now_s += sum(times)
        return times

    def wait_until(self, time_s: float) -> None:
        """Go on to this time."""
        self.now_s = max(self.now_s, time_s)
