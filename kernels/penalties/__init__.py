"""What is taken off the logits of tokens that a row's text has already."""

from __future__ import annotations

from torch import Tensor

from cadenza.kernels.penalties.reference import penalised_reference
from cadenza.kernels.triton_backend import uses_triton

__all__ = ["penalised", "penalised_reference"]


def penalised(
    logits: Tensor,
    seen: Tensor | None,
    counts: Tensor | None,
    *,
    repetition: float,
    frequency: float,
    presence: float,
) -> Tensor:
    """Return one row's logits [vocab_size] fp32 less the penalties; `logits` is not written to.

    seen: [vocab_size] bool, in prompt or output, None: no repetition penalty; counts: [vocab_size]
    fp32, times in the output, None: neither of the other two.
    """
    if uses_triton(logits.device):
        from cadenza.kernels.penalties.triton import penalised_triton

        return penalised_triton(logits, seen, counts, repetition, frequency, presence)
    return penalised_reference(logits, seen, counts, repetition, frequency, presence)
