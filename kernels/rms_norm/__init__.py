"""Root mean square normalisation of each row."""

from __future__ import annotations

from torch import Tensor

from cadenza.kernels.rms_norm.reference import add_rms_norm_reference, rms_norm_reference
from cadenza.kernels.triton_backend import uses_triton

__all__ = ["add_rms_norm", "add_rms_norm_reference", "rms_norm", "rms_norm_reference"]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Normalise x [rows, width] by row, in fp32, and scale by weight [width]; dtype of x."""
    if uses_triton(x.device):
        from cadenza.kernels.rms_norm.triton import rms_norm_triton

        return rms_norm_triton(x, weight, eps)
    return rms_norm_reference(x, weight, eps)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return x + residual normalised, and x + residual itself, which is rounded to their dtype."""
    if uses_triton(x.device):
        from cadenza.kernels.rms_norm.triton import add_rms_norm_triton

        return add_rms_norm_triton(x, residual, weight, eps)
    return add_rms_norm_reference(x, residual, weight, eps)
