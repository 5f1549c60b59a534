"""Products of int8 weights with rows that are quantised to int8 as they come.

A weight has a scale an output, quantised once; a row of x has a scale of its own, from its largest
value and nothing else. Codes are multiplied and added as whole numbers, which is exact in any
order: a row has the same bits in any batch, and kernels of every level have those of the reference.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cadenza.kernels.int8_linear.native import PackedInt8Weight
from cadenza.kernels.int8_linear.reference import Int8Weight, int8_linear_reference, quantise_rows
from cadenza.kernels.linear import Weight, native

__all__ = [
    "Int8Weight",
    "PackedInt8Weight",
    "TwiceQuantised",
    "int8_linear_reference",
    "pack_int8",
    "quantise_rows",
]


def pack_int8(weight: Tensor) -> Weight:
    """Quantise a weight [out_features, in_features] on the CPU, for `kernels.linear.linear`.

    The result keeps nothing of it. Raises ValueError for a weight that is not finite, or that has
    more than 65,536 inputs.
    """
    return PackedInt8Weight(weight) if native.is_supported(weight.dtype) else Int8Weight(weight)


class TwiceQuantised:
    """An int8 weight whose rows are quantised twice: what the first codes leave once more.

    Inputs with a few large values keep some 15 bits so, at the cost of a second product.
    """

    def __init__(self, weight: Tensor) -> None:
        """As `pack_int8`."""
        self._weight = pack_int8(weight.float())

    @property
    def out_features(self) -> int:
        return self._weight.out_features

    def multiply(self, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """Return x @ weight.T in `dtype`, that of x by default."""
        exact = x.float()
        codes, scales = quantise_rows(exact)
        rest = exact - codes.float() * scales.unsqueeze(1)
        y = self._weight.multiply(exact) + self._weight.multiply(rest)
        return y.to(dtype or x.dtype)
