"""The most urgent request first."""

from __future__ import annotations

from cadenza.policies.markers import hookimpl
from cadenza.policies.views import FloatArray, RequestColumns, StepView


class Priority:
    """Admit the lowest priority number first; equals keep their order of arrival.

    There is no aging in the score: the guard that stands beside every order sees to those who are
    overtaken too often.
    """

    name = "priority"

    @hookimpl
    def order_admissions(self, waiting: RequestColumns, step: StepView) -> FloatArray:
        return waiting.priority.astype(float)
