"""Causal attention of new tokens over keys and values that lie in cache blocks.

The layout of a step (which tokens, which blocks, what is hidden) is computed once a step by
`plan_attention` and shared by all layers. On CUDA, rows with one new token go through the Triton
kernel; all else goes through the reference.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cadenza.kernels.paged_attention.layout import AttentionLayout, DecodeRows, plan_attention
from cadenza.kernels.paged_attention.reference import paged_attention_reference
from cadenza.kernels.paged_attention.workspace import Workspace

__all__ = [
    "AttentionLayout",
    "DecodeRows",
    "Workspace",
    "paged_attention",
    "paged_attention_reference",
    "plan_attention",
]


def paged_attention(
    queries: Tensor, cache: Tensor, layout: AttentionLayout, scale: float
) -> Tensor:
    """Attend with queries [tokens, heads, head_dim]; returns the same shape and dtype.

    cache: one layer, [num_blocks, 2, block_size, kv_heads, head_dim], the new tokens already
    written. `scale` multiplies the scores before the softmax.
    """
    out = torch.empty_like(queries)
    if layout.decode is not None:
        from cadenza.kernels.paged_attention.triton import paged_decode

        paged_decode(queries, cache, layout.decode, scale, out)
    paged_attention_reference(queries, cache, layout, scale, out)
    return out
