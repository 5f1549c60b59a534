"""The least urgent request is the first victim."""

from __future__ import annotations

import numpy as np

from cadenza.policies.markers import hookimpl
from cadenza.policies.views import FloatArray, RequestColumns, StepView


class LowestPriority:
    """Preempt the largest priority number first, among equals the newest admission.

    vLLM's rule under `priority` scheduling, with admission in place of arrival: a request keeps its
    rank over a preemption, so that whoever came back is not the first to be taken again.
    """

    name = "lowest-priority"

    @hookimpl
    def select_victims(self, running: RequestColumns, step: StepView) -> FloatArray:
        order = np.lexsort((-running.admission, -running.priority))
        scores = np.empty(len(running))
        scores[order] = np.arange(len(running))
        return scores
