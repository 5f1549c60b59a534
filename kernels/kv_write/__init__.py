"""Writing new keys and values into the paged cache."""

from __future__ import annotations

from torch import Tensor

from cadenza.kernels.kv_write.reference import kv_write_reference
from cadenza.kernels.triton_backend import uses_triton

__all__ = ["kv_write", "kv_write_reference"]


def kv_write(keys: Tensor, values: Tensor, cache: Tensor, blocks: Tensor, offsets: Tensor) -> None:
    """Write keys and values [tokens, kv_heads, head_dim] into one layer's cache, in place.

    cache: [num_blocks, 2, block_size, kv_heads, head_dim]; blocks and offsets: [tokens] int64,
    where each token goes; no place may occur twice. A token whose block is negative is not written.
    """
    if uses_triton(cache.device):
        from cadenza.kernels.kv_write.triton import kv_write_triton

        kv_write_triton(keys, values, cache, blocks, offsets)
    else:
        kv_write_reference(keys, values, cache, blocks, offsets)
