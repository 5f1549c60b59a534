"""Products with weights of eight bits, int8 or fp8, and one scale an output."""

from __future__ import annotations

from torch import Tensor

from cadenza.kernels.quantised_linear.reference import quantised_linear_reference
from cadenza.kernels.quantised_linear.weights import QuantisedWeight, quantise
from cadenza.kernels.triton_backend import uses_triton

__all__ = ["QuantisedWeight", "quantise", "quantised_linear", "quantised_linear_reference"]


def quantised_linear(x: Tensor, weight: QuantisedWeight) -> Tensor:
    """Return x @ weight.T: [rows, in_features] -> [rows, out_features], of the dtype of x."""
    if uses_triton(x.device):
        from cadenza.kernels.quantised_linear.triton import quantised_linear_triton

        return quantised_linear_triton(x, weight)
    return quantised_linear_reference(x, weight)
