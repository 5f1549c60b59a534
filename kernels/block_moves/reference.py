"""Gather and scatter of whole blocks in plain torch: this is the specification."""

from __future__ import annotations

import torch
from torch import Tensor


def gather_blocks_reference(cache: Tensor, blocks: Tensor, staging: Tensor) -> None:
    """staging[i] = cache[blocks[i]], as `gather_blocks`."""
    torch.index_select(cache, 0, blocks, out=staging)


def scatter_blocks_reference(staging: Tensor, cache: Tensor, blocks: Tensor) -> None:
    """cache[blocks[i]] = staging[i], as `scatter_blocks`."""
    cache.index_copy_(0, blocks, staging)
