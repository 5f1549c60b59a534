"""y = (x Cᵀ) · s with codes of eight bits in Triton, for any compute capability.

Codes are widened in registers to the dtype of x, in which each of them is exact; the scale of an
output is applied to its sum. fp8 is read as bytes: capability 8.0 has no such numbers. Exponent and
mantissa of E4M3 under fp16's, times 2^8, are the same number, subnormal ones too
(https://arxiv.org/abs/2209.05433, table 1); a NaN is not among codes.
"""

from __future__ import annotations

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from cadenza.kernels.quantised_linear.weights import QuantisedWeight
from cadenza.kernels.triton_backend import INTERPRETED

_FEW_ROWS, _MANY_ROWS = 16, 64  # a tile
_OUTPUTS = 64  # a tile
_INPUTS = 64  # that a tile adds at once; fp32, without tensor cores, half of it, for few rows
_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


@triton.jit  # type: ignore[untyped-decorator]
def _quantised_linear_kernel(  # type: ignore[no-untyped-def]
    x_ptr,
    codes_ptr,
    scales_ptr,
    out_ptr,
    rows,
    outputs,
    inputs,
    stride_xr,
    IS_FP8: tl.constexpr,
    WIDEN: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    m = tl.program_id(1).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    sums = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, inputs, BLOCK_K):
        inner = start + k
        x_mask = (m < rows)[:, None] & (inner < inputs)[None, :]
        x = tl.load(x_ptr + m[:, None] * stride_xr + inner[None, :], mask=x_mask, other=0.0)
        code_mask = (n < outputs)[:, None] & (inner < inputs)[None, :]
        codes = tl.load(codes_ptr + n[:, None] * inputs + inner[None, :], mask=code_mask, other=0)
        if IS_FP8:
            bits = codes.to(tl.uint16)
            bits = ((bits & 0x80) << 8) | ((bits & 0x7F) << 7)
            wide = bits.to(tl.float16, bitcast=True).to(tl.float32) * 256.0
        else:
            wide = codes.to(tl.float32)
        if WIDEN:
            x = x.to(tl.float32)
        sums += tl.dot(x, tl.trans(wide.to(x.dtype)), input_precision="ieee")
    scales = tl.load(scales_ptr + n, mask=n < outputs, other=0.0)
    mask = (m < rows)[:, None] & (n < outputs)[None, :]
    out = (sums * scales[None, :]).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + m[:, None] * outputs + n[None, :], out, mask=mask)


def quantised_linear_triton(
    x: Tensor, weight: QuantisedWeight, dtype: torch.dtype, *, invariant: bool
) -> Tensor:
    """Multiply x [rows, in_features] as `quantised_linear` does; rows of x are contiguous."""
    _validate(x, weight)
    rows, inputs = x.shape
    outputs = len(weight.scales)
    out = torch.empty((rows, outputs), dtype=dtype, device=x.device)
    if not rows:
        return out
    is_fp8 = weight.codes.dtype == torch.float8_e4m3fn
    is_fp32 = x.dtype == torch.float32
    # tiles of another shape may be multiplied by other instructions
    few = rows <= _FEW_ROWS and not invariant
    block_m = _FEW_ROWS if few or is_fp32 else _MANY_ROWS
    _quantised_linear_kernel[(triton.cdiv(outputs, _OUTPUTS), triton.cdiv(rows, block_m))](
        x,
        weight.codes.view(torch.uint8) if is_fp8 else weight.codes,
        weight.scales,
        out,
        rows,
        outputs,
        inputs,
        x.stride(0),
        IS_FP8=is_fp8,
        # Triton's interpreter keeps bf16 as integers and multiplies those
        WIDEN=INTERPRETED and x.dtype == torch.bfloat16,
        BLOCK_M=block_m,
        BLOCK_N=_OUTPUTS,
        BLOCK_K=_INPUTS // 2 if is_fp32 else _INPUTS,
        num_stages=1 if is_fp32 else 3,
    )
    return out


def _validate(x: Tensor, weight: QuantisedWeight) -> None:
    codes, scales = weight
    if x.dtype not in _DTYPES or scales.dtype != torch.float32:
        raise ValueError(f"dtypes {x.dtype} and {scales.dtype} do not fit")
    if codes.dtype not in (torch.int8, torch.float8_e4m3fn):
        raise ValueError(f"codes are {codes.dtype}, not int8 or float8_e4m3fn")
    if x.ndim != 2 or codes.shape != (len(scales), x.shape[1]):
        raise ValueError(f"shapes {x.shape}, {codes.shape}, {scales.shape} do not fit")
    if x.stride(1) != 1 < x.shape[1] or not (codes.is_contiguous() and scales.is_contiguous()):
        raise ValueError("codes, scales and the rows of x must be contiguous")
