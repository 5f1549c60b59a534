"""Row-invariant y = x Wᵀ in plain torch: this is the specification.

Rows are multiplied in tiles of 16, the last one padded with zeros, so that the library sees one
shape only. Within a tile of one shape, a row's result depends neither on the other rows nor on
its place (asserted in tests/kernels/test_linear.py). One thread multiplies: several divide the sum
of some shapes among them, MKL's for odd ones on some machines.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cadenza.kernels.threads import one_thread

TILE_ROWS = 16


def linear_reference(x: Tensor, weight: Tensor) -> Tensor:
    """Return x @ weight.T for x [rows, in_features] and weight [out_features, in_features]."""
    rows = x.shape[0]
    padded = x.new_zeros(-(-rows // TILE_ROWS), TILE_ROWS, x.shape[1])
    padded.view(-1, x.shape[1])[:rows] = x
    with one_thread():
        tiles = [tile @ weight.t() for tile in padded]
    return torch.cat(tiles)[:rows] if tiles else x.new_empty(0, weight.shape[0])
