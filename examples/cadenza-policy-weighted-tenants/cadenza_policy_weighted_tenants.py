"""Tenants take turns; some of them more, and requests of no tenant fewer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cadenza.policies import RequestColumns, StepView, hookimpl

NO_TENANT = 0


class WeightedTenants:
    """Admit tenants in turn, whoever sends how many; favoured ones take more turns, nobody's fewer.

    A request gets its turn when it is first seen: 1 / weight after its tenant's latest one, but not
    before the turn that waits for longest now. The lowest turn is admitted first. A tenant weighs
    1, or `favoured_weight` if it is named as favoured, and all requests without one weigh
    `anonymous_weight` together. Who was preempted has had its turn, and goes first.

    This is self-clocked fair queueing. It counts requests, not tokens; where they differ much in
    length, the built-in fair-share is fairer.
    """

    name = "weighted-tenants"
    requires_hookspec = ">=0.3.1,<0.4"

    @dataclass(frozen=True)
    class Options:
        """`favoured`: names of tenants, with commas between; others weigh 1."""

        anonymous_weight: float = 0.25
        favoured: str = ""
        favoured_weight: float = 4.0

        def __post_init__(self) -> None:
            for name in ("anonymous_weight", "favoured_weight"):
                if not 0 < getattr(self, name) < float("inf"):
                    raise ValueError(f"{name} must be above 0 and finite")

    def __init__(self, options: Options) -> None:
        self._anonymous_cost = 1 / options.anonymous_weight
        self._favoured = [name for name in options.favoured.split(",") if name]
        self._favoured_cost = 1 / options.favoured_weight
        self._turns: dict[int, float] = {}  # by waiting request
        self._latest: dict[int, float] = {}  # by tenant; few, since numbers are used again
        self._now = 0.0

    @hookimpl
    def order_admissions(self, waiting: RequestColumns, step: StepView) -> npt.NDArray[np.float64]:
        requests = waiting.request.tolist()
        known = self._turns
        # Nothing is kept of who waits no more: what a policy remembers must not grow for ever
        self._turns = {request: known[request] for request in requests if request in known}
        self._now = max(self._now, min(self._turns.values(), default=0.0))
        costs = self._costs(step)
        for request, tenant in zip(requests, waiting.tenant.tolist(), strict=True):
            if request not in self._turns:
                self._turns[request] = self._next_turn(tenant, costs.get(tenant, 1.0))
        turns = np.array([self._turns[request] for request in requests], dtype=np.float64)
        return np.where(waiting.admission >= 0, 0.0, turns)

    def _costs(self, step: StepView) -> dict[int, float]:
        """Of a turn, by the number that a tenant has now; numbers are used again."""
        numbers = [step.tenants[name] for name in self._favoured if name in step.tenants]
        return {NO_TENANT: self._anonymous_cost, **dict.fromkeys(numbers, self._favoured_cost)}

    def _next_turn(self, tenant: int, cost: float) -> float:
        self._latest[tenant] = max(self._latest.get(tenant, 0.0), self._now) + cost
        return self._latest[tenant]


@hookimpl
def register_policies() -> list[type]:
    return [WeightedTenants]
