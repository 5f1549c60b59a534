"""Tenants are served alike, whatever they send."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cadenza.policies.markers import hookimpl
from cadenza.policies.tenancy import Backlog, Ledger, ahead
from cadenza.policies.views import FloatArray, RequestColumns, StepView


class FairShare:
    """Admit of the tenant that was served least: the virtual token counter, VTC (OSDI 2024).

        score = counter of the tenant + prompt cost of its earlier waiting requests
        counter += prompt_weight * prompt_tokens    at a request's first admission
        counter += output_weight                    at each token generated

    One score a request is the paper's loop, which takes the tenant with the least counter and
    charges it, over and over; within a tenant requests go by arrival. A tenant that begins to wait
    is lifted to the least counter of those that wait, or that waited last, so that nobody saves up
    for later. While two tenants wait, the service they got differs by at most
    2 * max(prompt_weight * longest prompt, output_weight * tokens that fit the cache).

    Requests of no tenant are one tenant together. Differences: tenants have no weights; a victim
    that is computed again is not charged again, as it was not its tenant's wish; tokens that were
    computed behind a stop string stay charged (two at most).

    It loses prefix hits, which it neither looks for nor forgives the cost of (`prefix-fair` does),
    and knows of no deadlines.
    """

    name = "fair-share"
    overtakes_within_tenant = True  # or guards would help whoever sends most

    @dataclass(frozen=True)
    class Options:
        """Costs of a prompt's and of a generated token."""

        prompt_weight: float = 1.0
        output_weight: float = 2.0

        def __post_init__(self) -> None:
            if not (0 <= self.prompt_weight < np.inf and 0 < self.output_weight < np.inf):
                raise ValueError("weights must be finite, and that of outputs above 0")

    def __init__(self, options: Options | None = None) -> None:
        self._options = options or self.Options()
        self._served = Ledger()
        self._backlog = Backlog()

    @hookimpl
    def order_admissions(self, waiting: RequestColumns, step: StepView) -> FloatArray:
        tenants = waiting.tenant
        served = self._served.upto(int(tenants.max(initial=0)))
        self._backlog.lift(np.bincount(tenants).nonzero()[0], served)
        costs = np.where(waiting.admission < 0, waiting.prompt_tokens, 0)
        scores: FloatArray = served[tenants]
        scores += self._options.prompt_weight * ahead(
            tenants, waiting.arrival.argsort(kind="stable"), costs
        )
        return scores

    @hookimpl
    def on_admitted(self, admitted: RequestColumns, step: StepView) -> None:
        new = admitted.preemptions == 0
        costs = self._options.prompt_weight * admitted.prompt_tokens[new]
        self._served.add(admitted.tenant[new], costs)

    @hookimpl
    def on_generated(self, generated: RequestColumns, step: StepView) -> None:
        tenants = generated.tenant
        self._served.add(tenants, np.full(len(tenants), self._options.output_weight))
