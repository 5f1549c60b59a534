"""The gated activation of SwiGLU."""

from __future__ import annotations

from torch import Tensor

from cadenza.kernels.silu_mul.reference import silu_mul_reference
from cadenza.kernels.triton_backend import uses_triton

__all__ = ["silu_mul", "silu_mul_reference"]


def silu_mul(gate_up: Tensor) -> Tensor:
    """Map gate_up [rows, 2 * width], the gate first, to silu(gate) · up [rows, width]."""
    if uses_triton(gate_up.device):
        from cadenza.kernels.silu_mul.triton import silu_mul_triton

        return silu_mul_triton(gate_up)
    return silu_mul_reference(gate_up)
