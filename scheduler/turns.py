"""Turns: starving rows take some of those that others would have."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cadenza.scheduler.columns import where
from cadenza.scheduler.waiting import NORMAL_PER_STARVING, Indices, interleave, lowest

WHOLE = -1  # in place of a tenant, where all take turns together


class Turns:
    """Lets starving rows take every fourth admission: of all, or, tenant by tenant, of its own.

    The latter keeps an order fair among tenants that is so, however many of whose rows starve.
    """

    def __init__(self) -> None:
        self._since: dict[int, int] = {}  # normal admissions since a starving one, while few

    def lead(self, tenant: int) -> int:
        """Normal admissions before the next one of a starving row."""
        return NORMAL_PER_STARVING - self._since.get(tenant, NORMAL_PER_STARVING)

    def count(self, tenant: int, *, starving: bool) -> None:
        """Somebody was admitted."""
        if starving:
            self._since[tenant] = 0
        elif tenant in self._since:
            self._since[tenant] += 1
            if self._since[tenant] == NORMAL_PER_STARVING:
                del self._since[tenant]

    def within_tenants(
        self,
        scores: npt.NDArray[np.float64],
        arrivals: npt.NDArray[np.int64],
        tenants: npt.NDArray[np.int64],
        starving: Indices,
        normal: Indices,
        num: int,
    ) -> Indices:
        """The first `num` by score, of whose tenants starving ones take every fourth place.

        `starving` and `normal` are indices of those that may enter.
        """
        able = np.concatenate((normal, starving))
        order = able[lowest(scores[able], arrivals[able], num)]
        for tenant in set(tenants[order].tolist()) & set(tenants[starving].tolist()):
            places = where(tenants[order] == tenant)
            needy = starving[tenants[starving] == tenant]
            needy = needy[arrivals[needy].argsort()[: len(places)]]
            others = normal[tenants[normal] == tenant]
            others = others[lowest(scores[others], arrivals[others], len(places))]
            order[places] = interleave(needy, others, self.lead(tenant))[: len(places)]
        return order
