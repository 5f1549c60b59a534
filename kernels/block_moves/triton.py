"""Gather and scatter of whole blocks in Triton: a block is contiguous, and cut into pieces."""

from __future__ import annotations

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

_PIECE = 4096  # values a program copies


@triton.jit  # type: ignore[untyped-decorator]
def _move_kernel(  # type: ignore[no-untyped-def]
    source_ptr, target_ptr, blocks_ptr, size, IS_GATHER: tl.constexpr, PIECE: tl.constexpr
):
    index = tl.program_id(0).to(tl.int64)
    block = tl.load(blocks_ptr + index)
    value = tl.program_id(1).to(tl.int64) * PIECE + tl.arange(0, PIECE)
    mask = value < size
    if IS_GATHER:
        source, target = block, index
    else:
        source, target = index, block
    moved = tl.load(source_ptr + source * size + value, mask=mask)
    tl.store(target_ptr + target * size + value, moved, mask=mask)


def gather_blocks_triton(cache: Tensor, blocks: Tensor, staging: Tensor) -> None:
    """staging[i] = cache[blocks[i]], as `gather_blocks`."""
    _move(cache, staging, blocks, cache, staging)


def scatter_blocks_triton(staging: Tensor, cache: Tensor, blocks: Tensor) -> None:
    """cache[blocks[i]] = staging[i], as `scatter_blocks`."""
    _move(staging, cache, blocks, cache, staging)


def _move(source: Tensor, target: Tensor, blocks: Tensor, cache: Tensor, staging: Tensor) -> None:
    if cache.shape[1:] != staging.shape[1:] or cache.dtype != staging.dtype:
        raise ValueError(
            f"{cache.dtype} {cache.shape} and {staging.dtype} {staging.shape} do not fit"
        )
    if blocks.dtype != torch.int64 or blocks.shape != staging.shape[:1]:
        raise ValueError("blocks must be int64, one element a block of the staging memory")
    if not (cache.is_contiguous() and staging.is_contiguous() and blocks.is_contiguous()):
        raise ValueError("cache, staging and blocks must be contiguous")
    if not len(blocks):
        return
    size = cache[0].numel()
    _move_kernel[(len(blocks), triton.cdiv(size, _PIECE))](
        source, target, blocks, size, IS_GATHER=source is cache, PIECE=_PIECE
    )
