"""Cached prefixes first, as far as fairness among tenants allows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cadenza.policies.markers import hookimpl
from cadenza.policies.tenancy import Backlog, Ledger, ahead, by
from cadenza.policies.views import FloatArray, RequestColumns, StepView

_ROUND = 2.0**32  # more than any prompt has tokens; scores stay exact up to 2**21 rounds


class PrefixFair:
    """Deficit longest prefix match, DLPM (arXiv 2501.14312): prefix order, by quanta.

    Every tenant has a quantum of service. Requests go by cached prefix, the longest first, while
    their tenant has some left; when no tenant that waits has, all that wait get another quantum.

        round = quanta that its tenant must still get before it is this request's turn
        score = (round, -cached_tokens)
        used += prefill_weight * tokens to compute    at each admission
        used += output_weight                         at each token generated

    What a prefix hit saves is not charged, so sharing pays. Quanta are counted from the least used
    of the tenants that wait. One that begins to wait is lifted there (as in `fair-share`; the paper
    lets debts stand), so what it can save up is less than one. While two tenants wait, the service
    they got differs by a few quanta and a few of the largest requests; the larger the quantum, the
    more hits and the less fair. Unlike in the paper, a victim pays for what it computes again.

    A tenant with little in the cache waits until the others that wait have used up their quanta,
    and no guard helps it sooner, as requests of others overtake none of its own: of short requests
    hundreds may go first. So by nature a quantum of 4,096 only just passes the flood of short
    requests in `cadenza.testing`'s checks, where it lasts 190 of 300 steps, and one of 8,192 does
    not.

    It loses hits against `prefix-aware` where tenants share nothing, and does not hold back equal
    prefixes that wait together.
    """

    name = "prefix-fair"
    overtakes_within_tenant = True  # or guards would help whoever sends most

    @dataclass(frozen=True)
    class Options:
        """`quantum`: service a turn, in weighted tokens; and the weights."""

        quantum: float = 4096.0
        prefill_weight: float = 1.0
        output_weight: float = 2.0

        def __post_init__(self) -> None:
            if not 1 <= self.quantum < np.inf:
                raise ValueError("quantum must be finite and at least 1")
            if not (0 <= self.prefill_weight < np.inf and 0 <= self.output_weight < np.inf):
                raise ValueError("weights must be finite and not negative")

    def __init__(self, options: Options | None = None) -> None:
        self._options = options or self.Options()
        self._used = Ledger()
        self._backlog = Backlog()

    @hookimpl
    def order_admissions(self, waiting: RequestColumns, step: StepView) -> FloatArray:
        options, tenants = self._options, waiting.tenant
        used = self._used.upto(int(tenants.max(initial=0)))
        waits = np.bincount(tenants).nonzero()[0]
        self._backlog.lift(waits, used)
        turn = np.floor(used[waits].min(initial=np.inf) / options.quantum)
        cached, costs = waiting.cached_tokens, waiting.remaining_prefill
        missing = (cached.max(initial=0) - cached) // step.block_size
        order = by(missing, waiting.arrival.argsort(kind="stable"))
        spent = used[tenants] + options.prefill_weight * ahead(tenants, order, costs)
        rounds = np.floor(spent / options.quantum) - turn
        scores: FloatArray = rounds * _ROUND - cached
        return scores

    @hookimpl
    def on_admitted(self, admitted: RequestColumns, step: StepView) -> None:
        costs = self._options.prefill_weight * admitted.remaining_prefill.astype(np.float64)
        self._used.add(admitted.tenant, costs)

    @hookimpl
    def on_generated(self, generated: RequestColumns, step: StepView) -> None:
        tenants = generated.tenant
        self._used.add(tenants, np.full(len(tenants), self._options.output_weight))
