"""What is added to the logits of tokens that a row favours, and which tokens it forbids."""

from __future__ import annotations

from torch import Tensor

from cadenza.kernels.logit_masks.masks import HostMasks, Masks, RowMask, masks_of, packed
from cadenza.kernels.logit_masks.reference import masked_reference

__all__ = [
    "HostMasks",
    "Masks",
    "RowMask",
    "apply_masks",
    "masked_reference",
    "masks_of",
    "packed",
]


def apply_masks(logits: Tensor, masks: Masks) -> None:
    """Do as `masked_reference`, where Triton computes: in place, and for all rows of a step.

    logits: [rows, vocab_size] fp32, contiguous. Nobody waits. Raises ValueError where it is not so.
    """
    from cadenza.kernels.logit_masks.triton import apply_masks_triton

    apply_masks_triton(logits, masks)
