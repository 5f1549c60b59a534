"""One metric: its name, its meaning, its labels and their values now.

Label values come from closed sets: model and policy names, hooks, reasons, declared routes, and the
tenants that the operator named.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from cadenza.service.metrics import Histogram

Kind: TypeAlias = Literal["gauge", "counter", "histogram"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One metric without a prefix. Counters get `_total` behind their names."""

    name: str
    kind: Kind
    text: str
    labels: Sequence[str] = ()  # besides the model's
    samples: Sequence[tuple[Sequence[str], float]] = ()  # label values, value
    histograms: Sequence[tuple[Sequence[str], Histogram]] = ()
    is_vllms: bool = False  # vLLM has it too

    def copy(self) -> Family:
        """The same, which later observations do not change."""
        return replace(
            self,
            samples=list(self.samples),
            histograms=[(labels, histogram.copy()) for labels, histogram in self.histograms],
        )
