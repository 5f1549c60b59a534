"""y = x / sqrt(mean(x²) + eps) · weight in Triton, with the residual added before if there is one.

One program a row, so that a row's bits depend on nothing else. Source:
https://arxiv.org/abs/1910.07467
"""

from __future__ import annotations

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor


@triton.jit  # type: ignore[untyped-decorator]
def _rms_norm_kernel(  # type: ignore[no-untyped-def]
    x_ptr,
    residual_ptr,
    weight_ptr,
    out_ptr,
    sum_ptr,
    eps,
    stride_xo,
    stride_xi,
    stride_ro,
    stride_ri,
    INNER: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    outer, inner = row // INNER, row % INNER
    column = tl.arange(0, BLOCK)
    mask = column < WIDTH
    x = tl.load(x_ptr + outer * stride_xo + inner * stride_xi + column, mask=mask, other=0.0).to(
        tl.float32
    )
    if HAS_RESIDUAL:
        residual_ptrs = residual_ptr + outer * stride_ro + inner * stride_ri + column
        x += tl.load(residual_ptrs, mask=mask, other=0.0).to(tl.float32)
        # what goes on is what is normalised: both rounded
        rounded = x.to(sum_ptr.dtype.element_ty)
        tl.store(sum_ptr + row * WIDTH + column, rounded, mask=mask)
        x = rounded.to(tl.float32)
    mean = tl.sum(x * x, 0) / WIDTH
    weight = tl.load(weight_ptr + column, mask=mask, other=0.0).to(tl.float32)
    y = x * tl.rsqrt(mean + eps) * weight
    tl.store(out_ptr + row * WIDTH + column, y.to(out_ptr.dtype.element_ty), mask=mask)


def rms_norm_triton(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Normalise x [rows, width] or [tokens, heads, width] as `rms_norm_reference` does.

    Rows have to be contiguous.
    """
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _launch(x, x, weight, out, out, eps, has_residual=False)
    return out


def add_rms_norm_triton(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """Add and normalise as `add_rms_norm_reference` does; rows have to be contiguous."""
    if residual.shape != x.shape or residual.dtype != x.dtype:
        raise ValueError(f"a residual {residual.shape} of {residual.dtype} does not fit {x.shape}")
    out, total = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for _ in range(2))
    _launch(x, residual, weight, out, total, eps, has_residual=True)
    return out, total


def _launch(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    out: Tensor,
    total: Tensor,
    eps: float,
    *,
    has_residual: bool,
) -> None:
    if x.ndim not in (2, 3) or weight.shape != x.shape[-1:]:
        raise ValueError(f"shapes {x.shape} and {weight.shape} do not fit")
    if any(part.stride(-1) != 1 < part.shape[-1] for part in (x, residual, weight)):
        raise ValueError("rows must be contiguous")
    width = x.shape[-1]
    rows = x.numel() // width
    if not rows:
        return
    block = triton.next_power_of_2(width)
    _rms_norm_kernel[(rows,)](
        x,
        residual,
        weight,
        out,
        total,
        eps,
        *_strides(x),
        *_strides(residual),
        INNER=x.shape[1] if x.ndim == 3 else 1,
        WIDTH=width,
        BLOCK=block,
        HAS_RESIDUAL=has_residual,
        # 16 values a thread and fewer: wider rows would spill
        num_warps=min(max(block // 512, 4), 16),
    )


def _strides(x: Tensor) -> tuple[int, int]:
    return x.stride(0), x.stride(1) if x.ndim == 3 else 0
