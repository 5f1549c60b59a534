"""No place for whoever would wait too long for it to be of use."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cadenza.policies.arrivals import ArrivalColumns, Refusal, ServiceView
from cadenza.policies.markers import hookimpl

_LEAST_S, _LONGEST_S = 0.1, 3600.0  # that a client is told to wait


class TtftTarget:
    """Refuse whoever would have to wait longer for a seat than for its first token at most.

        within     = min(ttft_target_s, deadline_s - now_s);  default_s for who names neither
        refused if wait_s > within,  retry after wait_s - within

    `wait_s` is `ServiceView`'s: how long those that wait now take at the pace of late. So the queue
    is as long as is of use, whatever requests cost, and the refused can go elsewhere at once rather
    than give up later. SGLang's and vLLM's limits of the queue are numbers that an operator has to
    guess it from.

    It loses where others overtake a newcomer, which then waits longer, and after a change of load,
    until 64 have had seats. What a prefill takes is not counted. Who names no target and no
    deadline passes, unless `default_s` is given.
    """

    name = "ttft-target"

    @dataclass(frozen=True)
    class Options:
        """`default_s`: seconds within which a first token is wanted by who names none."""

        default_s: float | None = None

        def __post_init__(self) -> None:
            if self.default_s is not None and not 0 < self.default_s < math.inf:
                raise ValueError("default_s must be above 0, and finite")

    def __init__(self, options: Options | None = None) -> None:
        default_s = (options or self.Options()).default_s
        self._default_s = math.inf if default_s is None else default_s

    @hookimpl
    def gate_arrivals(
        self, arrivals: ArrivalColumns, service: ServiceView
    ) -> Sequence[Refusal | None] | None:
        within_s = np.minimum(arrivals.ttft_target_s, arrivals.deadline_s - service.now_s)
        within_s = np.where(np.isinf(within_s), self._default_s, within_s)
        late_s = service.wait_s - within_s
        if (late_s <= 0).all():
            return None
        return [self._refusal(late, service) if late > 0 else None for late in late_s.tolist()]

    def _refusal(self, late_s: float, service: ServiceView) -> Refusal:
        reason = (
            f"The first token would come too late: a seat takes {service.wait_s:.1f} s now. "
            "Try again later."
        )
        retry_after_s = min(max(late_s, _LEAST_S), _LONGEST_S)
        return Refusal(reason=reason, limit="service", retry_after_s=retry_after_s)
