"""Int8 products by our own C++ kernels, bitwise those of the reference at every level."""

from __future__ import annotations

from collections.abc import Callable

import torch
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
    def format(self) -> int:
        return INT8

    def _pack(self, weight: Tensor) -> None:
        if not self._library.pack_int8(torch.get_num_threads(), *self._place(weight)):
            raise ValueError("a weight that is not finite cannot be quantised")

    def _product(self) -> Callable[..., None]:
        return self._library.int8_linear
