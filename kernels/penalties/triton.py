"""Penalties in Triton, rounded as on the CPU: torch divides by a number on a GPU by multiplying."""

from __future__ import annotations

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

_PIECE = 1024  # tokens a program looks at


@triton.jit  # type: ignore[untyped-decorator]
def _penalties_kernel(  # type: ignore[no-untyped-def]
    logits_ptr,
    seen_ptr,
    counts_ptr,
    out_ptr,
    size,
    repetition,
    frequency,
    presence,
    HAS_SEEN: tl.constexpr,
    HAS_COUNTS: tl.constexpr,
    PIECE: tl.constexpr,
):
    token = tl.program_id(0) * PIECE + tl.arange(0, PIECE)
    mask = token < size
    x = tl.load(logits_ptr + token, mask=mask, other=0.0)
    if HAS_SEEN:
        seen = tl.load(seen_ptr + token, mask=mask, other=0)
        divided = tl.div_rn(x, repetition + tl.zeros_like(x))
        x = tl.where(seen != 0, tl.where(x > 0, divided, x * repetition), x)
    if HAS_COUNTS:
        count = tl.load(counts_ptr + token, mask=mask, other=0.0)
        x = x - count * frequency
        x = tl.where(count > 0, x - presence, x)
    tl.store(out_ptr + token, x, mask=mask)


def penalised_triton(
    logits: Tensor,
    seen: Tensor | None,
    counts: Tensor | None,
    repetition: float,
    frequency: float,
    presence: float,
) -> Tensor:
    """Return logits [vocab_size] fp32 less the penalties, as `penalised`."""
    columns = [column for column in (logits, seen, counts) if column is not None]
    if any(column.shape != logits.shape or column.ndim != 1 for column in columns):
        raise ValueError(f"shapes {[tuple(column.shape) for column in columns]} do not fit")
    if not all(column.is_contiguous() for column in columns):
        raise ValueError("logits, seen and counts must be contiguous")
    out = torch.empty_like(logits)
    _penalties_kernel[(triton.cdiv(len(logits), _PIECE),)](
        logits,
        logits if seen is None else seen.view(torch.uint8),
        logits if counts is None else counts,
        out,
        len(logits),
        repetition,
        frequency,
        presence,
        HAS_SEEN=seen is not None,
        HAS_COUNTS=counts is not None,
        PIECE=_PIECE,
        # fused into one, product and difference would be rounded once
        enable_fp_fusion=False,
    )
    return out
