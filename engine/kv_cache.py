"""The paged cache of keys and values on the device, and the host's room for swapped blocks."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from cadenza.kernels.large_pages import zeros


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

    def sizes(self, num_blocks: int) -> tuple[int, ...]:
        """Return the sizes of a tensor of blocks."""
        return (
            num_blocks,
            self.num_layers,
            2,
            self.block_size,
            self.num_kv_heads,
            self.head_dim,
        )


class KVCache:
    """One tensor, [num_blocks, layers, 2, block_size, kv_heads, head_dim], zeros at first.

    A block is contiguous over all layers, so that moving it elsewhere is one copy.
    """

    def __init__(self, shape: CacheShape, num_blocks: int, device: torch.device) -> None:
        self.shape = shape
        self.num_blocks = num_blocks
        sizes = shape.sizes(num_blocks)
        if device.type == "cpu":
            self.blocks = _lazy_zeros(sizes, shape.dtype)
        else:
            self.blocks = torch.zeros(sizes, dtype=shape.dtype, device=device)

    def layer(self, index: int) -> Tensor:
        """Return one layer as a view [num_blocks, 2, block_size, kv_heads, head_dim]."""
        return self.blocks[:, index]


class HostCache:
    """Blocks of the same layout in the host's memory, for preempted rows; there may be none.

    Beside a device of its own memory they are pinned, so that the device copies by itself.
    """

    def __init__(self, shape: CacheShape, num_blocks: int, device: torch.device) -> None:
        self.num_blocks = num_blocks
        sizes = shape.sizes(num_blocks)
        if device.type == "cpu":
            self.blocks = _lazy_zeros(sizes, shape.dtype)
        else:
            self.blocks = torch.zeros(sizes, dtype=shape.dtype, pin_memory=True)


def _lazy_zeros(sizes: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros whose memory the system provides as it is first written. Raises as `zeros` does."""
    return zeros(math.prod(sizes) * dtype.itemsize).view(dtype).view(sizes)
