"""Counting by tenant. For policies to share."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cadenza.policies.views import FloatArray, IntArray

Indices = npt.NDArray[np.intp]


class Ledger:
    """One figure a tenant, 0 at first."""

    def __init__(self) -> None:
        self._figures = np.zeros(64)

    def upto(self, tenant: int) -> FloatArray:
        """The figures by tenant, at least up to this one. To be changed in place."""
        if tenant >= len(self._figures):
            more = np.zeros(2 * tenant + 1 - len(self._figures))
            self._figures = np.concatenate((self._figures, more))
        return self._figures

    def add(self, tenants: IntArray, amounts: FloatArray) -> None:
        """Add to the figures of these tenants, which may come several times."""
        if len(tenants):
            sums = np.bincount(tenants, amounts)
            self.upto(len(sums))[: len(sums)] += sums


class Backlog:
    """Lifts the figures of tenants that begin to wait to where those are that wait already.

    Whoever waits is served in the order of the figures, so that what a tenant did not ask for in
    the past is not owed to it. If nobody goes on waiting, those that waited last stand for them, by
    what they have been served up to now: what they were given meanwhile, nobody else wanted.
    """

    def __init__(self) -> None:
        self._waited = np.empty(0, dtype=np.int64)  # tenants, when last looked at
        self._level = 0.0  # never falls

    def lift(self, tenants: IntArray, figures: FloatArray) -> None:
        """Change the figures in place; `tenants` are those that wait now, each once."""
        waited = np.zeros(len(figures), dtype=bool)
        waited[self._waited] = True
        stay = waited[tenants]
        others = tenants[stay] if stay.any() else self._waited
        if len(others):
            self._level = max(self._level, float(figures[others].min()))
        new = tenants[~stay]
        figures[new] = np.maximum(figures[new], self._level)
        self._waited = tenants


def by(keys: IntArray, order: Indices) -> Indices:
    """`order`, sorted by `keys`, none negative; equals stay as they are."""
    most = keys.max(initial=0)
    if most <= 0xFFFF:
        # NumPy sorts 10,000 of these in 0.02 or 0.04 ms, of 64 bits in 0.5 ms
        keys = keys.astype(np.uint8 if most <= 0xFF else np.uint16)
    return order.take(keys.take(order).argsort(kind="stable"))


def ahead(tenants: IntArray, order: Indices, costs: IntArray) -> IntArray:
    """For each request, the costs of those of its tenant that come earlier in `order`."""
    order = by(tenants, order)
    ordered, own = tenants.take(order), costs.take(order)
    before = own.cumsum()
    before -= own
    # What comes before each tenant's first request, by tenant, to be left out
    firsts = (ordered[1:] != ordered[:-1]).nonzero()[0] + 1
    others = np.zeros(tenants.max(initial=0) + 1, dtype=before.dtype)
    others[ordered.take(firsts)] = before.take(firsts)
    before -= others.take(ordered)
    left = np.empty_like(before)
    left[order] = before
    return left
