"""Int8 products by our own C++ kernels, bitwise those of the reference at every level."""

from __future__ import annotations

from torch import Tensor

from cadenza.kernels.int8_linear.reference import check_inputs
from cadenza.kernels.linear.native import PackedWeight
from cadenza.kernels.native import INT8


class PackedInt8Weight(PackedWeight):
    """A quantised weight in panels of 32 outputs; it keeps nothing of the tensor."""

    def __init__(self, weight: Tensor, level: str | None = None) -> None:
        """As of `PackedWeight`. Raises ValueError too where a value is not finite."""
        check_inputs(weight)
        super().__init__(weight, level)

    @property
    def _formats(self) -> tuple[int, ...]:
        return (INT8,)
