"""Rotary position embedding in Triton: one program rotates all heads of a token.

(a, b) -> (a cos - b sin, b cos + a sin) for dimension i of the first half and of the second.
Source: https://arxiv.org/abs/2104.09864
"""

from __future__ import annotations

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor


@triton.jit  # type: ignore[untyped-decorator]
def _rotary_kernel(  # type: ignore[no-untyped-def]
    x_ptr,
    cos_ptr,
    sin_ptr,
    out_ptr,
    stride_xt,
    stride_xh,
    stride_ct,
    stride_st,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_F: tl.constexpr,
    BLOCK_R: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    h = tl.arange(0, BLOCK_H)[:, None]
    f = tl.arange(0, BLOCK_F)[None, :]
    mask = (h < HEADS) & (f < HALF)
    cos = tl.load(cos_ptr + token * stride_ct + f, mask=f < HALF, other=0.0)
    sin = tl.load(sin_ptr + token * stride_st + f, mask=f < HALF, other=0.0)
    x_ptrs = x_ptr + token * stride_xt + h * stride_xh
    out_ptrs = out_ptr + (token * HEADS + h) * HEAD_DIM
    first = tl.load(x_ptrs + f, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(x_ptrs + HALF + f, mask=mask, other=0.0).to(tl.float32)
    kind = out_ptr.dtype.element_ty
    tl.store(out_ptrs + f, (first * cos - second * sin).to(kind), mask=mask)
    tl.store(out_ptrs + HALF + f, (second * cos + first * sin).to(kind), mask=mask)
    if HEAD_DIM > 2 * HALF:
        r = 2 * HALF + tl.arange(0, BLOCK_R)[None, :]
        rest_mask = (h < HEADS) & (r < HEAD_DIM)
        tl.store(out_ptrs + r, tl.load(x_ptrs + r, mask=rest_mask), mask=rest_mask)


def rotary_embedding_triton(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate x [tokens, heads, head_dim] as `rotary_embedding_reference` does.

    cos and sin: [tokens, 1, rotated / 2] fp32. All last dimensions have to be contiguous.
    """
    tokens, heads, head_dim = x.shape
    half = cos.shape[-1]
    if not cos.shape == sin.shape == (tokens, 1, half) or 2 * half > head_dim:
        raise ValueError(f"shapes {x.shape}, {cos.shape}, {sin.shape} do not fit")
    if not cos.dtype == sin.dtype == torch.float32:
        raise ValueError(f"cos and sin are {cos.dtype} and {sin.dtype}, not float32")
    if any(part.stride(-1) != 1 < part.shape[-1] for part in (x, cos, sin)):
        raise ValueError("last dimensions must be contiguous")
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if tokens:
        _rotary_kernel[(tokens,)](
            x,
            cos,
            sin,
            out,
            *x.stride()[:2],
            cos.stride(0),
            sin.stride(0),
            HEADS=heads,
            HALF=half,
            HEAD_DIM=head_dim,
            BLOCK_H=triton.next_power_of_2(heads),
            BLOCK_F=triton.next_power_of_2(half),
            BLOCK_R=triton.next_power_of_2(max(1, head_dim - 2 * half)),
        )
    return out
