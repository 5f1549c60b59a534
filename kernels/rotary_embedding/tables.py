"""The cosines and sines of all positions, computed once.

One table for the life of a model, instead of cosines a step: an element's value then cannot
depend on where it stood in a vector loop.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class RotaryTables(NamedTuple):
    """cos and sin, each [positions, 1, rotated / 2], fp32."""

    cos: Tensor
    sin: Tensor

    def at(self, positions: Tensor) -> RotaryTables:
        """Return the rows of `positions` (int64)."""
        return RotaryTables(
            self.cos.index_select(0, positions), self.sin.index_select(0, positions)
        )


def rotary_tables(frequencies: Tensor, num_positions: int, factor: float = 1.0) -> RotaryTables:
    """Tabulate angles position · frequency for frequencies [rotated / 2] in radians a token.

    factor: what cosines and sines are multiplied by, and with them whatever is rotated.
    """
    positions = torch.arange(num_positions, dtype=torch.float32, device=frequencies.device)
    angles = torch.outer(positions, frequencies.float()).unsqueeze(1)
    return RotaryTables(angles.cos().mul_(factor), angles.sin().mul_(factor))
