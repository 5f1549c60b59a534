"""What one tenant may ask for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cadenza.policies.arrivals import ArrivalColumns, Refusal, ServiceView
from cadenza.policies.markers import hookimpl
from cadenza.policies.tenancy import Ledger

_TOLERANCE_S = 1e-6  # whoever comes back when it was told is not refused for rounding
_LONGEST_S = 3600.0  # that a client is told to wait


class TenantQuota:
    """Hold each tenant to its places in the queue and to its rate of tokens.

        cost = prompt tokens + choices * max_tokens         as far as known at arrival
        debt = max(0, paid - now) * tokens_per_s            of what was taken, not yet made good
        refused if  debt + min(cost, burst) > burst,        burst = burst_s * tokens_per_s
                retry after (debt + min(cost, burst) - burst) / tokens_per_s
        paid = max(paid, now) + cost / tokens_per_s         otherwise

    A token bucket of `burst` tokens, kept as the time when it will be full again: the generic cell
    rate algorithm (ITU-T I.371, virtual scheduling). One that costs more than the bucket holds
    passes when the bucket is full, and is paid off afterwards, or it never would. The cost is
    Azure OpenAI's estimate: what a request may need is charged at its arrival and never given back.

    Besides, a request is refused if its tenant would have more than `max_queued` choices waiting.
    Requests of no tenant are one tenant together, so that leaving the name out gains nothing.

    It loses where clients ask for far more than they use (`max_tokens` is charged in full, all the
    context where it is missing), and refuses though the service is idle. What later fails, or is
    refused by a gate behind it, has been charged. A tenant that is forgotten, because 1024 others
    have come since it last waited, leaves its debt to whoever gets its number.
    """

    name = "tenant-quota"

    @dataclass(frozen=True)
    class Options:
        """`max_queued` choices of a tenant may wait; `tokens_per_s`: None is no limit."""

        max_queued: int = 64
        tokens_per_s: float | None = None
        burst_s: float = 10.0  # so many seconds' worth of tokens may come at once

        def __post_init__(self) -> None:
            if self.max_queued < 1:
                raise ValueError("max_queued must be at least 1")
            if self.tokens_per_s is not None and not 0 < self.tokens_per_s < math.inf:
                raise ValueError("tokens_per_s must be above 0, and finite")
            if not 0 < self.burst_s < math.inf:
                raise ValueError("burst_s must be above 0, and finite")

    def __init__(self, options: Options | None = None) -> None:
        self._options = options or self.Options()
        self._paid_s = Ledger()  # when each tenant's bucket is full

    @hookimpl
    def gate_arrivals(
        self, arrivals: ArrivalColumns, service: ServiceView
    ) -> Sequence[Refusal | None] | None:
        costs = arrivals.prompt_tokens + arrivals.choices * arrivals.max_tokens
        tenants = arrivals.tenant
        refusals: list[Refusal | None] = [None] * len(arrivals)
        charges = []
        for tenant in set(tenants.tolist()):
            own = (tenants == tenant).nonzero()[0].tolist()
            queued = int(arrivals.tenant_queued[own[0]] + arrivals.choices[own].sum())
            cost = int(costs[own].sum())
            refusal = self._over_queued(queued) or self._over_rate(tenant, cost, service.now_s)
            for index in own:
                refusals[index] = refusal
            charges.append((tenant, cost))
        if any(refusals):
            return refusals  # nobody enters, so nobody pays
        for tenant, cost in charges:
            self._charge(tenant, cost, service.now_s)
        return None

    def _over_queued(self, queued: int) -> Refusal | None:
        if queued <= self._options.max_queued:
            return None
        limit = self._options.max_queued
        reason = f"Your limit of {limit} waiting choices is reached. Try again later."
        return Refusal(reason=reason, limit="tenant")

    def _over_rate(self, tenant: int, cost: int, now_s: float) -> Refusal | None:
        rate, burst_s = self._options.tokens_per_s, self._options.burst_s
        if rate is None:
            return None
        owed_s = max(0.0, float(self._paid_s.upto(tenant)[tenant]) - now_s)
        wait_s = owed_s + min(cost / rate, burst_s) - burst_s
        if wait_s <= _TOLERANCE_S:
            return None
        wait_s = min(math.ceil(wait_s * 1000) / 1000, _LONGEST_S)
        reason = f"Your limit of {rate:g} tokens a second is reached. Try again later."
        return Refusal(reason=reason, limit="tenant", retry_after_s=wait_s)

    def _charge(self, tenant: int, cost: int, now_s: float) -> None:
        if self._options.tokens_per_s is not None:
            paid_s = self._paid_s.upto(tenant)
            paid_s[tenant] = np.maximum(paid_s[tenant], now_s) + cost / self._options.tokens_per_s
