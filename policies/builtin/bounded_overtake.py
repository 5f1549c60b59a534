"""Nobody is overtaken for ever."""

from __future__ import annotations

from cadenza.policies.markers import hookimpl
from cadenza.policies.views import BoolArray, RequestColumns, StepView

MAX_OVERTAKES = 64


class BoundedOvertake:
    """A request starves once MAX_OVERTAKES later arrivals were admitted ahead of it."""

    name = "bounded-overtake"

    @hookimpl
    def guard_starvation(self, waiting: RequestColumns, step: StepView) -> BoolArray:
        return waiting.overtakes >= MAX_OVERTAKES
