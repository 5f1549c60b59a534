"""Causal attention of new tokens over keys and values that lie in cache blocks.

The layout of a step (which tokens, which blocks, what is hidden) is computed once a step by
`plan_attention` and shared by all layers. Where Triton computes, as on CUDA, its kernels do all of
it; elsewhere the reference does.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cadenza.kernels.paged_attention.layout import AttentionLayout, plan_attention
from cadenza.kernels.paged_attention.query_tiles import (
    HostTiles,
    QueryTiles,
    Splits,
    TileCutter,
    invariant_splits,
    least_query_rows,
    num_processors,
)
from cadenza.kernels.paged_attention.reference import paged_attention_reference
from cadenza.kernels.paged_attention.workspace import Workspace

__all__ = [
    "AttentionLayout",
    "HostTiles",
    "QueryTiles",
    "Splits",
    "TileCutter",
    "Workspace",
    "invariant_splits",
    "least_query_rows",
    "num_processors",
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
    if layout.tiles:
        from cadenza.kernels.paged_attention.triton import paged_attention_triton

        for tiles in layout.tiles:
            paged_attention_triton(queries, cache, tiles, scale, out, layout.window, layout.softcap)
    paged_attention_reference(queries, cache, layout, scale, out)
    return out
