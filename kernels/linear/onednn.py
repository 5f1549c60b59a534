"""Row-invariant products on the CPU by oneDNN, over weights that were packed once.

Packed, a product takes half the time of `x @ w.t()`, which packs its weight in every call (all
products of SmolLM2-135M at 16 rows on two Zen 4 cores: fp32 24 ms instead of 49, bf16 14 ms
instead of 25). oneDNN chooses its blocking by the numbers of rows and threads: one row alone
differs from the same row among others; all larger numbers tried were bit-equal, on 1 to 32
threads. So only a few row counts are ever used, and each is compared, on as many threads as are
set, with tiles of 16 rows on one thread when the first weight of a shape is packed. A count that
differs on this machine is not used; were there none left, one thread would multiply.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import cache

import torch
from torch import Tensor

from cadenza.kernels.linear.reference import TILE_ROWS
from cadenza.kernels.threads import one_thread

_ROW_COUNTS = (2, 4, 8, 12, TILE_ROWS, 24, 32, 40, 48, 56, 64)  # more rows were not faster
_MOST_CHECK_ROWS = 128
# Compared outputs a row count: in bf16 only 1 in 6,000 showed that one row differs
_CHECK_VALUES = 1 << 16

_checked: dict[tuple[int, int, torch.dtype], tuple[int, ...]] = {}


@cache
def is_supported(dtype: torch.dtype) -> bool:
    """Tell whether this build and machine multiply packed weights of `dtype`."""
    if dtype not in (torch.float32, torch.bfloat16):
        return False
    try:
        _multiply(torch.zeros(2, 16, dtype=dtype), _reorder(torch.zeros(16, 16, dtype=dtype)))
    except (AttributeError, NotImplementedError, RuntimeError):
        return False
    return True


class PackedWeight:
    """A weight in oneDNN's own layout, and the row counts that are bit-equal for its shape."""

    def __init__(self, weight: Tensor) -> None:
        self._packed = _reorder(weight.contiguous())
        self._shape = (weight.shape[0], weight.shape[1])
        key = (*self._shape, weight.dtype)
        if key not in _checked:
            _checked[key] = _equal_row_counts(self, weight)
        self._row_counts = _checked[key] or (TILE_ROWS,)
        self._threads = nullcontext if _checked[key] else one_thread

    @property
    def out_features(self) -> int:
        return self._shape[0]

    @property
    def row_counts(self) -> tuple[int, ...]:
        """The numbers of rows that one library call may get, ascending."""
        return self._row_counts

    def product(self, x: Tensor) -> Tensor:
        """Multiply in one library call, whatever the number of rows."""
        return _multiply(x, self._packed)

    def multiply(self, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        dtype = dtype or x.dtype
        most = self._row_counts[-1]
        with self._threads():
            if 0 < len(x) <= most:
                return self._padded(x).to(dtype)
            y = torch.empty(len(x), self._shape[0], dtype=dtype)
            for start in range(0, len(x), most):
                y[start : start + most] = self._padded(x[start : start + most])
            return y

    def _padded(self, x: Tensor) -> Tensor:
        rows = len(x)
        count = next(count for count in self._row_counts if count >= rows)
        if count != rows:
            x = torch.nn.functional.pad(x, (0, 0, 0, count - rows))
        return self.product(x.contiguous())[:rows]


def _reorder(weight: Tensor) -> Tensor:
    # looked up when called: a build without oneDNN does not have it
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, None)
    return packed


def _multiply(x: Tensor, packed: Tensor) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")
    return product


def _equal_row_counts(packed: PackedWeight, weight: Tensor) -> tuple[int, ...]:
    """Return the row counts whose products are bit-equal to those of 16-row tiles on one thread."""
    generator = torch.Generator().manual_seed(0)
    needed = max(1, _CHECK_VALUES // weight.shape[0])
    num_rows = min(-(-needed // _ROW_COUNTS[-1]) * _ROW_COUNTS[-1], _MOST_CHECK_ROWS)
    x = torch.randn(num_rows, weight.shape[1], generator=generator).to(weight.dtype)
    with one_thread():
        tiles = torch.cat([packed.product(tile) for tile in x.view(-1, TILE_ROWS, x.shape[1])])

    def is_equal(count: int) -> bool:
        starts = range(0, min(num_rows, max(needed, count)) - count + 1, count)
        return all(
            torch.equal(packed.product(x[i : i + count]), tiles[i : i + count]) for i in starts
        )

    return tuple(count for count in _ROW_COUNTS if is_equal(count))
