"""y = silu(gate) · up in Triton, with silu(g) = g / (1 + exp(-g)).

Source: https://arxiv.org/abs/2002.05202
"""

from __future__ import annotations

import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from cadenza.kernels.gate_launch import launch


@triton.jit  # type: ignore[untyped-decorator]
def _silu_mul_kernel(gate_up_ptr, out_ptr, width, stride_gr, PIECE: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * PIECE + tl.arange(0, PIECE)
    mask = column < width
    gate_ptrs = gate_up_ptr + row * stride_gr + column
    gate = tl.load(gate_ptrs, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_ptrs + width, mask=mask, other=0.0).to(tl.float32)
    y = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out_ptr + row * width + column, y.to(out_ptr.dtype.element_ty), mask=mask)


def silu_mul_triton(gate_up: Tensor) -> Tensor:
    """Map gate_up [rows, 2 * width], the gate first, to [rows, width]; rows contiguous."""
    return launch(_silu_mul_kernel, gate_up)
