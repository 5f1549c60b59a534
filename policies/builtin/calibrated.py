"""As many tokens a step as the operator, or the warm-up, found this machine to compute well."""

from __future__ import annotations

from cadenza.policies.markers import hookimpl
from cadenza.policies.views import RequestColumns, StepBudget, StepView


class Calibrated:
    """Every step may have all tokens that are configured, and one prompt as many as are left.

    The fixed token budget of Sarathi-Serve (OSDI'24): decodes first, prefills share the rest. It is
    not asked, since the scheduler does that by itself.
    """

    name = "calibrated"

    @hookimpl
    def plan_budget(
        self, running: RequestColumns, waiting: RequestColumns, step: StepView
    ) -> StepBudget:
        return StepBudget(step.token_budget)
