"""Turns: starving rows take some of those that others would have."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np

from cadenza.policies.tenancy import by
from cadenza.scheduler.columns import BoolColumn, FloatColumn, IntColumn, where
from cadenza.scheduler.waiting import NORMAL_PER_STARVING, Indices, interleave, lowest

WHOLE = -1  # in place of a tenant, where all take turns together


class Turns:
    """Lets starving rows take every fourth admission: of all, or, tenant by tenant, of its own.

    The latter keeps an order fair among tenants that is so, however many of whose rows starve.
    """

    def __init__(self) -> None:
        # Normal admissions since a starving one, while few. A tenant that leaves may hand its
        # number on with less than one turn, which is over before anybody of the next one starves.
        self._since: dict[int, int] = {}

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
        scores: FloatColumn,
        arrivals: IntColumn,
        tenants: IntColumn,
        starving: BoolColumn,
        num: int,
    ) -> Indices:
        """The first `num` by score, of whose tenants starving rows take every fourth place.

        Every array has one element a waiting row. Returns indices. Rows that the order keeps out
        (+inf) have no place, unless they starve: then they have the last ones, or take one of
        their tenant's.

        A starving row may cost more than the one in whose place it enters. The order learns of
        that as of every admission, so that its tenant pays for it from the next step on.
        """
        order, normal = _first(scores, arrivals, starving, num), ~starving & (scores < np.inf)
        places: dict[int, list[int]] = {}
        for place, tenant in enumerate(tenants.take(order).tolist()):
            places.setdefault(tenant, []).append(place)
        for tenant, needy in _by_tenant(arrivals, tenants, starving, places):
            own, lead = places[tenant], self.lead(tenant)
            by_score = order[own]
            others = by_score[normal[by_score]]
            # Starving rows that the order itself puts first may have held more places than turns
            turns = max(0, -(-(len(own) - lead) // (NORMAL_PER_STARVING + 1)))
            if len(others) + min(turns, len(needy)) < len(own):
                others = where(normal & (tenants == tenant))
                others = others[lowest(scores.take(others), arrivals.take(others), len(own))]
            order[own] = interleave(needy[: len(own)], others, lead)[: len(own)]
        return order


def _first(scores: FloatColumn, arrivals: IntColumn, starving: BoolColumn, num: int) -> Indices:
    """The first `num` by score; those that are kept out only if they starve."""
    is_open = scores < np.inf
    if np.count_nonzero(is_open) >= num:
        return lowest(scores, arrivals, num)
    able = where(is_open | starving)
    return able[lowest(scores.take(able), arrivals.take(able), num)]


def _by_tenant(
    arrivals: IntColumn, tenants: IntColumn, starving: BoolColumn, wanted: Collection[int]
) -> Iterator[tuple[int, Indices]]:
    """For each wanted tenant of whom any starve, those, in order of arrival."""
    needy = where(starving)
    needy = by(tenants, needy[arrivals.take(needy).argsort(kind="stable")])
    owners = tenants.take(needy)
    numbers = np.array(sorted(wanted), dtype=np.int64)
    starts, ends = owners.searchsorted(numbers), owners.searchsorted(numbers, side="right")
    for tenant, start, end in zip(numbers.tolist(), starts.tolist(), ends.tolist(), strict=True):
        if start < end:
            yield tenant, needy[start:end]
