"""y = x Wᵀ in Triton, a row's bits whatever the other rows: tiles of one shape, one order of sums.

A library chooses tiles, splits and instructions by the number of rows. Here a tile has 64 rows even
where one is multiplied, which costs little where weights are read from memory once for all of them.
"""

from __future__ import annotations

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from cadenza.kernels.triton_backend import INTERPRETED

_ROWS = 64  # a tile; 16 of fp32, which is multiplied without tensor cores
_OUTPUTS = 64  # a tile
_INPUTS = 64  # that a tile adds at once; 32 of fp32
_GROUP = 8  # tiles of rows that are multiplied beside each other, to share weights in the L2 cache
_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


@triton.jit  # type: ignore[untyped-decorator]
def _linear_kernel(  # type: ignore[no-untyped-def]
    x_ptr,
    weight_ptr,
    out_ptr,
    rows,
    outputs,
    inputs,
    stride_xr,
    WIDEN: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
):
    row_tiles = tl.cdiv(rows, BLOCK_M)
    each = GROUP * tl.cdiv(outputs, BLOCK_N)
    group = tl.program_id(0) // each
    in_group = tl.program_id(0) % each
    wide = tl.minimum(row_tiles - group * GROUP, GROUP)
    row_tile = (group * GROUP + in_group % wide).to(tl.int64)
    m = row_tile * BLOCK_M + tl.arange(0, BLOCK_M)
    n = (in_group // wide).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    sums = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, inputs, BLOCK_K):
        inner = start + k
        x_mask = (m < rows)[:, None] & (inner < inputs)[None, :]
        x = tl.load(x_ptr + m[:, None] * stride_xr + inner[None, :], mask=x_mask, other=0.0)
        weight_mask = (n < outputs)[:, None] & (inner < inputs)[None, :]
        weight = tl.load(
            weight_ptr + n[:, None] * inputs + inner[None, :], mask=weight_mask, other=0.0
        )
        if WIDEN:
            x = x.to(tl.float32)
            weight = weight.to(tl.float32)
        sums += tl.dot(x, tl.trans(weight), input_precision="ieee")
    mask = (m < rows)[:, None] & (n < outputs)[None, :]
    out_ptrs = out_ptr + m[:, None] * outputs + n[None, :]
    tl.store(out_ptrs, sums.to(out_ptr.dtype.element_ty), mask=mask)


def linear_triton(x: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Return x @ weight.T for x [rows, in_features] and weight [out_features, in_features].

    dtype: of the result, that of x or fp32. Rows of x are contiguous, and weight is.
    """
    if x.dtype not in _DTYPES or weight.dtype != x.dtype:
        raise ValueError(f"dtypes {x.dtype} and {weight.dtype} do not fit")
    if x.ndim != 2 or x.shape[1] != weight.shape[1]:
        raise ValueError(f"shapes {x.shape} and {weight.shape} do not fit")
    if x.stride(1) != 1 < x.shape[1] or not weight.is_contiguous():
        raise ValueError("the weight and the rows of x must be contiguous")
    rows, inputs = x.shape
    outputs = len(weight)
    out = torch.empty((rows, outputs), dtype=dtype, device=x.device)
    if not rows:
        return out
    is_fp32 = x.dtype == torch.float32
    block_m = _ROWS // 4 if is_fp32 else _ROWS
    _linear_kernel[(triton.cdiv(rows, block_m) * triton.cdiv(outputs, _OUTPUTS),)](
        x,
        weight,
        out,
        rows,
        outputs,
        inputs,
        x.stride(0),
        # Triton's interpreter keeps bf16 as integers and multiplies those
        WIDEN=INTERPRETED and x.dtype == torch.bfloat16,
        BLOCK_M=block_m,
        BLOCK_N=_OUTPUTS,
        BLOCK_K=_INPUTS // 2 if is_fp32 else _INPUTS,
        GROUP=_GROUP,
        num_stages=1 if is_fp32 else 3,
        # 4 spill on sm_100
        num_warps=4 if is_fp32 else 8,
    )
    return out
