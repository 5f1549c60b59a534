"""y = (x Cᵀ) · s with codes C and scales s, in plain torch: this is the specification."""

from __future__ import annotations

from torch import Tensor

from cadenza.kernels.quantised_linear.weights import QuantisedWeight


def quantised_linear_reference(x: Tensor, weight: QuantisedWeight) -> Tensor:
    """Multiply x [rows, in_features] as `quantised_linear` does, in fp32."""
    return (x.float() @ weight.codes.float().t() * weight.scales).to(x.dtype)
