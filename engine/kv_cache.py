"""The paged cache of keys and values."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheShape:
    """What one block holds."""

    num_layers: int
    block_size: int  # tokens
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype

    @property
    def block_bytes(self) -> int:
        """Bytes of one block over all layers, keys and values."""
        values = self.num_layers * 2 * self.block_size * self.num_kv_heads * self.head_dim
        return values * self.dtype.itemsize

    def num_blocks_in(self, num_bytes: int) -> int:
        """Return how many blocks fit into `num_bytes`."""
        return num_bytes // self.block_bytes


class KVCache:
    """One tensor, [num_blocks, layers, 2, block_size, kv_heads, head_dim].

    A block is contiguous over all layers, so that moving it elsewhere is one copy.
    """

    def __init__(self, shape: CacheShape, num_blocks: int, device: torch.device) -> None:
        self.shape = shape
        self.num_blocks = num_blocks
        # zeros come lazily from the system; memory is taken as blocks are first written
        self.blocks = torch.zeros(
            num_blocks,
            shape.num_layers,
            2,
            shape.block_size,
            shape.num_kv_heads,
            shape.head_dim,
            dtype=shape.dtype,
            device=device,
        )

    def layer(self, index: int) -> Tensor:
        """Return one layer as a view [num_blocks, 2, block_size, kv_heads, head_dim]."""
        return self.blocks[:, index]
