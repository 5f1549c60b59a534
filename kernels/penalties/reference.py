"""Penalties in plain torch: this is the specification.

As vLLM does: repetition, then frequency, then presence.
"""

from __future__ import annotations

import torch
from torch import Tensor


def penalised_reference(
    logits: Tensor,
    seen: Tensor | None,
    counts: Tensor | None,
    repetition: float,
    frequency: float,
    presence: float,
) -> Tensor:
    """Return logits [vocab_size] less the penalties, as `penalised`."""
    if seen is not None:
        weakened = torch.where(logits > 0, logits / repetition, logits * repetition)
        logits = torch.where(seen, weakened, logits)
    if counts is not None:
        # Product and difference apart: fused, they would be rounded otherwise at a vector's end,
        # and where that is depends on the number of threads
        logits = logits - counts * frequency
        logits = logits - (counts > 0) * presence
    return logits
