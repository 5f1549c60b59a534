"""y = (A Cᵀ) · a · c with int8 codes A of rows, C of a weight, in plain torch: the specification.

Sums are whole numbers, and exact: those of 1,024 products of two codes up to 127 stay below 2^24,
so that fp32 has each of them, whatever order a library adds in.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cadenza.kernels.quantised_linear import QuantisedWeight, quantise

MOST_INPUTS = 1 << 16  # 255 * 127 of each fit into 31 bits
_EXACT = 1024  # inputs
_LEAST = 2.0**-119  # below, a scale or its inverse would not be a normal number


def quantise_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return codes of x [rows, inputs], int8 from -127 to 127, and scales [rows], fp32.

    A row's largest value becomes 127. A row of zeros, or of values below 2^-119, has the scale 0;
    one with a value that is not finite has the scale NaN, as have its products.
    """
    x = x.float()
    largest = x.abs().amax(dim=1)
    is_finite = largest.isfinite()
    has_codes = is_finite & (largest >= _LEAST)
    # of two tensors: a number by a tensor is the number times a rounded reciprocal
    inverses = torch.where(has_codes, torch.full_like(largest, 127.0) / largest, 0.0)
    scales = torch.where(has_codes, largest / 127.0, torch.where(is_finite, 0.0, torch.nan))
    codes = (x * inverses.unsqueeze(1)).round()
    return torch.where(has_codes.unsqueeze(1), codes, 0.0).to(torch.int8), scales


def int8_linear_reference(x: Tensor, weight: QuantisedWeight) -> Tensor:
    """Multiply x [rows, in_features]; [rows, out_features], fp32."""
    codes, scales = quantise_rows(x)
    sums = torch.zeros(len(x), len(weight.scales), dtype=torch.int32)
    for start in range(0, codes.shape[1], _EXACT):
        some = slice(start, start + _EXACT)
        sums += (codes[:, some].float() @ weight.codes[:, some].float().t()).to(torch.int32)
    return sums.float() * scales.unsqueeze(1) * weight.scales


def check_inputs(weight: Tensor) -> None:
    """Refuse a weight [out_features, in_features] whose sums could be too large."""
    if weight.ndim != 2 or not 1 <= weight.shape[1] <= MOST_INPUTS:
        raise ValueError(
            f"a weight for int8 is [outputs, 1 to {MOST_INPUTS:,} inputs], not {list(weight.shape)}"
        )


class Int8Weight:
    """The reference, of a weight that is quantised."""

    def __init__(self, weight: Tensor) -> None:
        """weight: [out_features, in_features]. Raises ValueError as `pack_int8`."""
        check_inputs(weight)
        self._weight = quantise(weight, torch.int8)

    @property
    def out_features(self) -> int:
        return len(self._weight.scales)

    def multiply(self, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """Return x @ weight.T in `dtype`, that of x by default."""
        return int8_linear_reference(x, self._weight).to(dtype or x.dtype)
