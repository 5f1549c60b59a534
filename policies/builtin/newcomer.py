"""Who comes when the queue is full is refused."""

from __future__ import annotations

import numpy as np

from cadenza.policies.arrivals import ArrivalColumns, ServiceView
from cadenza.policies.markers import hookimpl
from cadenza.policies.views import FloatArray


class Newcomer:
    """Refuse the newcomer; whoever waits goes on waiting.

    Tail drop, as in vLLM (`max_num_queued_reqs`). It is the cheapest, as nobody has waited in
    vain. It loses in a long overload: everybody who gets in has waited for a whole queue, and
    urgent requests are refused like any others.
    """

    name = "newcomer"

    @hookimpl
    def shed_load(self, waiting: ArrivalColumns, service: ServiceView) -> FloatArray:
        scores = np.zeros(len(waiting))
        scores[-1] = 1.0
        return scores
