"""Counters that go on when another engine begins at zero."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from cadenza.wire.messages import Counters, FaultCount, HookUse, Step

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
        self.hook_uses: Sequence[HookUse] = ()  # as was told last, at most a second ago
        self.policy_faults: Sequence[FaultCount] = ()  # of hooks that ever failed
        self._before: dict[str, int] = {}  # totals of engines that are gone

    def update(self, step: Step) -> Counters:
        """What the present engine tells; returns its counters, those of the ones before added."""
        counters = step.counters
        if self._before:
            added = {name: getattr(counters, name) + n for name, n in self._before.items()}
            counters = replace(counters, **added)
        self.counters = counters
        self.hook_uses = step.hook_uses or self.hook_uses
        self.policy_faults = step.policy_faults or self.policy_faults
        return counters

    def blame(self, policy: str, hook: str) -> None:
        """An engine was lost in this hook; the policy is quarantined with all that it has."""
        counts = {(each.policy, each.hook): each for each in self.policy_faults}
        before = counts.get((policy, hook), FaultCount(policy, hook, 0, quarantined=True))
        counts[policy, hook] = replace(before, faults=before.faults + 1)
        self.policy_faults = tuple(
            replace(each, quarantined=True) if each.policy == policy else each
            for each in counts.values()
        )

    def engine_lost(self) -> None:
        """The engine is gone with everything that it held; the next one counts from zero."""
        self._before = {name: getattr(self.counters, name) for name in _TOTALS}
        kept = {name: getattr(self.counters, name) for name in (*_TOTALS, "policy_faults")}
        self.counters = Counters(**kept)
