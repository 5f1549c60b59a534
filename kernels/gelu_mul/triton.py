"""y = gelu(gate) · up in Triton, with the gelu of reference.py: g / (1 + exp(-2 u)).

Source: https://arxiv.org/abs/1606.08415 (section 2)
"""

from __future__ import annotations

import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from cadenza.kernels.gate_launch import launch
from cadenza.kernels.gelu_mul.reference import CUBIC, SLOPE

_MINUS_SLOPE = tl.constexpr(-SLOPE)
_CUBIC_SLOPE = tl.constexpr(-SLOPE * CUBIC)


@triton.jit  # type: ignore[untyped-decorator]
def _gelu_mul_kernel(gate_up_ptr, out_ptr, width, stride_gr, PIECE: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * PIECE + tl.arange(0, PIECE)
    mask = column < width
    gate_ptrs = gate_up_ptr + row * stride_gr + column
    gate = tl.load(gate_ptrs, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_ptrs + width, mask=mask, other=0.0).to(tl.float32)
    minus_2u = gate * (gate * gate * _CUBIC_SLOPE + _MINUS_SLOPE)
    y = gate / (1.0 + tl.exp(minus_2u)) * up
    tl.store(out_ptr + row * width + column, y.to(out_ptr.dtype.element_ty), mask=mask)


def gelu_mul_triton(gate_up: Tensor) -> Tensor:
    """Map gate_up [rows, 2 * width], the gate first, to [rows, width]; rows contiguous."""
    return launch(_gelu_mul_kernel, gate_up)
