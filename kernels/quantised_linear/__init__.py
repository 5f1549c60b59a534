"""Products with weights of eight bits, int8 or fp8, and one scale an output."""

from __future__ import annotations

import torch
from torch import Tensor

from cadenza.kernels.quantised_linear.reference import quantised_linear_reference
from cadenza.kernels.quantised_linear.weights import QuantisedWeight, quantise
from cadenza.kernels.triton_backend import uses_triton

__all__ = ["QuantisedWeight", "quantise", "quantised_linear", "quantised_linear_reference"]


def quantised_linear(
    x: Tensor,
    weight: QuantisedWeight,
    dtype: torch.dtype | None = None,
    *,
    invariant: bool = False,
) -> Tensor:
    """Return x @ weight.T: [rows, in_features] -> [rows, out_features].

    dtype: of the result, that of x or fp32; that of x by default. invariant: whether Triton has to
    keep a row's bits whatever the other rows.
    """
    if uses_triton(x.device):
        from cadenza.kernels.quantised_linear.triton import quantised_linear_triton

        return quantised_linear_triton(x, weight, dtype or x.dtype, invariant=invariant)
    return quantised_linear_reference(x, weight).to(dtype or x.dtype)
