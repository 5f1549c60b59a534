"""A better priority pushes out a worse one."""

from __future__ import annotations

from cadenza.policies.markers import hookimpl
from cadenza.policies.views import FloatArray, RequestColumns, StepView


class StrictPriority:
    """The margin is how much worse the running request's priority is; equals never move.

    The rule of vLLM's `priority` scheduling, where arrival breaks ties among those who wait, but
    never against one that runs. Belongs beside the order `priority` and the victims
    `lowest-priority`: under another order the first in line may have nobody to push out.
    """

    name = "strict-priority"

    @hookimpl
    def allow_displacement(
        self, candidate: RequestColumns, running: RequestColumns, step: StepView
    ) -> FloatArray:
        return running.priority.astype(float) - float(candidate.priority[0])
