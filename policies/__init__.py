"""What a policy author sees: hook markers, column views, answer types.

    from cadenza.policies import RequestColumns, StepView, hookimpl

`hookspecs` documents every hook. Installing a policy never activates it; a profile does.
"""

from cadenza.policies.arrivals import ArrivalColumns, Refusal, ServiceView
from cadenza.policies.cached_blocks import CachedBlocks
from cadenza.policies.markers import HOOKSPEC_VERSION, PROJECT, hookimpl, hookspec
from cadenza.policies.per_request import per_request
from cadenza.policies.views import PreemptionCosts, RequestColumns, StepBudget, StepView

__all__ = [
    "HOOKSPEC_VERSION",
    "PROJECT",
    "ArrivalColumns",
    "CachedBlocks",
    "PreemptionCosts",
    "Refusal",
    "RequestColumns",
    "ServiceView",
    "StepBudget",
    "StepView",
    "hookimpl",
    "hookspec",
    "per_request",
]
