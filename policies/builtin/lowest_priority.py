"""The least urgent request is the first victim, and the first to be refused."""

from __future__ import annotations

import numpy as np

from cadenza.policies.arrivals import ArrivalColumns, ServiceView
from cadenza.policies.markers import hookimpl
from cadenza.policies.views import FloatArray, RequestColumns, StepView


class LowestPriority:
    """Take the largest priority number first, among equals the newest.

    Of victims, the newest admission: vLLM's rule under `priority` scheduling, with admission in
    place of arrival, since a request keeps its rank over a preemption, so that whoever came back is
    not the first to be taken again. When the queue is full, the latest arrival: SGLang's rule under
    priority scheduling, where a newcomer takes the place of a waiting request only if it is more
    urgent. There it loses when everybody claims to be urgent, as nothing here keeps clients honest.
    """

    name = "lowest-priority"

    @hookimpl
    def select_victims(self, running: RequestColumns, step: StepView) -> FloatArray:
        order = np.lexsort((-running.admission, -running.priority))
        scores = np.empty(len(running))
        scores[order] = np.arange(len(running))
        return scores

    @hookimpl
    def shed_load(self, waiting: ArrivalColumns, service: ServiceView) -> FloatArray:
        return waiting.priority.astype(float)
