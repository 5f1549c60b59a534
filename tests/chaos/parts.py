"""What every part of the chaos is given, and what it gives back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much of everything."""

    kills: int = 100
    streams: int = 32  # alive at every kill
    cancels: int = 10_000
    stalled: int = 1_000  # readers of each protocol
    drains: int = 20
    seed: int = 1


class Outcome(NamedTuple):
    """Figures for the last line, and sentences about what should not be."""

    figures: dict[str, Any]
    wrong: Sequence[str] = ()
