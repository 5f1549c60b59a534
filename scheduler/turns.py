"""Turns: starving rows take some of those that others would have."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from cadenza.policies.tenancy import by
from cadenza.scheduler.columns import BoolColumn, FloatColumn, IntColumn, where
from cadenza.scheduler.waiting import NORMAL_PER_STARVING, Indices, earliest, lowest

WHOLE = -1  # in place of a tenant, where all take turns together


class Turns:
    """Lets starving rows take every fourth admission: of all, or, tenant by tenant, of its own.

    Those that the order itself lets in count, so that a guard costs others a quarter at most.

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

    def order(
        self,
        scores: FloatColumn,
        arrivals: IntColumn,
        starving: BoolColumn,
        num: int,
        tenants: IntColumn | None = None,
    ) -> Indices:
        """The first `num` by score, of which starving rows have every fourth place at least.

        Every array has one element a waiting row. Returns indices. Starving rows go by arrival.
        Places that the order itself gives to any of them are theirs beside those turns, or a row
        would wait longer for being seen to starve. Rows that the order keeps out (+inf) have no
        place, unless they starve: then they have the last ones, or a turn. With `tenants`, turns
        are taken within each tenant, at nobody else's cost.

        A starving row may cost more than the one in whose place it enters. The order learns of
        that as of every admission, so that its tenant pays for it from the next step on.
        """
        order = _first(scores, arrivals, starving, num)
        is_starving = starving.take(order)
        for turn, places, needy in _groups(arrivals, tenants, starving, order):
            rows = zip(order[places].tolist(), is_starving[places].tolist(), strict=True)
            order[places] = _merged(list(rows), needy.tolist(), self.lead(turn))
        return order


def _merged(by_score: list[tuple[int, bool]], needy: list[int], lead: int) -> list[int]:
    """As many rows as there are by score, given with whether they starve.

    `needy` are the starving ones by arrival, of whom one is due after `lead` others, and then after
    every three.
    """
    merged: list[int] = []
    entered = ranked = 0  # starving ones, in whatever place, and passed in the order by score
    for row, starves in by_score:
        if not lead and entered < len(needy):
            merged.append(needy[entered])
            entered, lead = entered + 1, NORMAL_PER_STARVING
        if not starves:
            merged.append(row)
            lead = max(0, lead - 1)
            continue
        ranked += 1
        if ranked > entered:
            merged.append(needy[entered])
            entered, lead = entered + 1, NORMAL_PER_STARVING
    return merged[: len(by_score)]


def _first(scores: FloatColumn, arrivals: IntColumn, starving: BoolColumn, num: int) -> Indices:
    """The first `num` by score; those that are kept out only if they starve."""
    is_open = scores < np.inf
    if np.count_nonzero(is_open) >= num:
        return lowest(scores, arrivals, num)
    able = where(is_open | starving)
    return able[lowest(scores.take(able), arrivals.take(able), num)]


def _groups(
    arrivals: IntColumn, tenants: IntColumn | None, starving: BoolColumn, order: Indices
) -> Iterator[tuple[int, list[int], Indices]]:
    """Whose turns they are, their places in `order`, and as many that starve, by arrival."""
    needy = where(starving)
    if tenants is None:
        yield WHOLE, list(range(len(order))), needy[earliest(arrivals.take(needy), len(order))]
        return
    places: dict[int, list[int]] = {}
    for place, tenant in enumerate(tenants.take(order).tolist()):
        places.setdefault(tenant, []).append(place)
    needy = by(tenants, needy[arrivals.take(needy).argsort(kind="stable")])
    owners, numbers = tenants.take(needy), np.array(list(places), dtype=np.int64)
    starts, ends = owners.searchsorted(numbers), owners.searchsorted(numbers, side="right")
    for tenant, start, end in zip(places, starts.tolist(), ends.tolist(), strict=True):
        own = places[tenant]
        if start < end:
            yield tenant, own, needy[start : min(end, start + len(own))]
