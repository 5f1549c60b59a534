"""The gated activation of GeGLU."""

from __future__ import annotations

from torch import Tensor

from cadenza.kernels.gelu_mul.reference import gelu_mul_reference
from cadenza.kernels.triton_backend import uses_triton

__all__ = ["gelu_mul", "gelu_mul_reference"]


def gelu_mul(gate_up: Tensor) -> Tensor:
    """Map gate_up [rows, 2 * width], the gate first, to gelu(gate) · up [rows, width]."""
    if uses_triton(gate_up.device):
        from cadenza.kernels.gelu_mul.triton import gelu_mul_triton

        return gelu_mul_triton(gate_up)
    return gelu_mul_reference(gate_up)
