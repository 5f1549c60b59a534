"""Nobody is overtaken for ever."""

from __future__ import annotations

from cadenza.policies.markers import hookimpl
from cadenza.policies.views import BoolArray, RequestColumns, StepView

MAX_OVERTAKES = 64


class BoundedOvertake:
    """A request starves once MAX_OVERTAKES later arrivals were admitted ahead of it.

    Overtakes are counted after each step, so that one step's admissions may come on top. Starving
    requests take every fourth admission: three more for each of them that is ahead. Under an order
    that is fair among tenants all of this is counted within a tenant.
    """

    name = "bounded-overtake"

    @hookimpl
    def guard_starvation(self, waiting: RequestColumns, step: StepView) -> BoolArray:
        return waiting.overtakes >= MAX_OVERTAKES
