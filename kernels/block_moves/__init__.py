"""Moving whole KV blocks: out of the cache into contiguous staging memory, and into it."""

from __future__ import annotations

from torch import Tensor

from cadenza.kernels.block_moves.reference import gather_blocks_reference, scatter_blocks_reference
from cadenza.kernels.triton_backend import uses_triton

__all__ = [
    "copy_blocks",
    "gather_blocks",
    "gather_blocks_reference",
    "scatter_blocks",
    "scatter_blocks_reference",
]


def gather_blocks(cache: Tensor, blocks: Tensor, staging: Tensor) -> None:
    """Copy block `blocks[i]` of the cache to `staging[i]`.

    cache: [num_blocks, ...] and staging: [count, ...], contiguous; blocks: [count] int64.
    """
    if uses_triton(cache.device):
        from cadenza.kernels.block_moves.triton import gather_blocks_triton

        gather_blocks_triton(cache, blocks, staging)
    else:
        gather_blocks_reference(cache, blocks, staging)


def scatter_blocks(staging: Tensor, cache: Tensor, blocks: Tensor) -> None:
    """Copy `staging[i]` to block `blocks[i]` of the cache, none of which may occur twice."""
    if uses_triton(cache.device):
        from cadenza.kernels.block_moves.triton import scatter_blocks_triton

        scatter_blocks_triton(staging, cache, blocks)
    else:
        scatter_blocks_reference(staging, cache, blocks)


def copy_blocks(cache: Tensor, sources: Tensor, targets: Tensor) -> None:
    """Copy blocks within the cache; every source is read before the first target is written."""
    staging = cache.new_empty((len(sources), *cache.shape[1:]))
    gather_blocks(cache, sources, staging)
    scatter_blocks(staging, cache, targets)
