"""Scatter of keys and values into cache blocks, in plain torch: this is the specification."""

from __future__ import annotations

import torch
from torch import Tensor


def kv_write_reference(
    keys: Tensor, values: Tensor, cache: Tensor, blocks: Tensor, offsets: Tensor
) -> None:
    """Write keys and values [tokens, kv_heads, head_dim] into one layer's cache, in place.

    cache: [num_blocks, 2, block_size, kv_heads, head_dim], any strides; keys at index 0 of its
    second dimension, values at 1. blocks and offsets: [tokens] int64, where each token goes; no
    place may occur twice. A token whose block is negative is padding, and is not written.
    """
    real = torch.nonzero(blocks >= 0).squeeze(1)
    if len(real) < len(blocks):
        keys, values, blocks, offsets = (x[real] for x in (keys, values, blocks, offsets))
    cache[:, 0].index_put_((blocks, offsets), keys)
    cache[:, 1].index_put_((blocks, offsets), values)
