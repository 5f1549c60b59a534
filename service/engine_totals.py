"""Counters that go on when another engine begins at zero."""

from __future__ import annotations

from msgspec.structs import replace

from cadenza.wire.messages import Counters

# Policies' faults are told to each engine, which goes on from them
_TOTALS = (
    "steps",
    "preemptions",
    "swaps",
    "computed_tokens",
    "recomputed_tokens",
    "generated_tokens",
    "prefix_queries",
    "prefix_hits",
    "decisions_lost",
)


class EngineTotals:
    """The present engine's state, and totals over all engines."""

    def __init__(self) -> None:
        self.counters = Counters()
        self._before: dict[str, int] = {}  # totals of engines that are gone

    def update(self, counters: Counters) -> Counters:
        """The present engine's counters; returns them with those of the ones before added."""
        if self._before:
            added = {name: getattr(counters, name) + n for name, n in self._before.items()}
            counters = replace(counters, **added)
        self.counters = counters
        return counters

    def engine_lost(self) -> None:
        """The engine is gone with everything that it held; the next one counts from zero."""
        self._before = {name: getattr(self.counters, name) for name in _TOTALS}
        kept = {name: getattr(self.counters, name) for name in (*_TOTALS, "policy_faults")}
        self.counters = Counters(**kept)
