"""Paged causal attention in plain torch, row-invariant on the CPU: this is the specification.

For query row i and KV head g: out = Σⱼ exp(sᵢⱼ - maxⱼ s) vⱼ / Σⱼ exp(sᵢⱼ - maxⱼ s), sᵢⱼ = scale qᵢ·kⱼ,
over the keys j that i may see. All in fp32. Scores and sums are made in tiles of 64 keys; the
maximum is exact in any order; sums of tiles are folded pairwise by tile number, so that tiles
past a row's end, which are zero, leave every bit as it is.
Source of the blocks: https://arxiv.org/abs/2309.06180
"""

from __future__ import annotations

import torch
from torch import Tensor

from cadenza.kernels.paged_attention.layout import AttentionLayout, PieceBatch
from cadenza.kernels.paged_attention.tiles import KEY_TILE, padded_rows


def paged_attention_reference(
    queries: Tensor, cache: Tensor, layout: AttentionLayout, scale: float, out: Tensor
) -> None:
    """Write the attention of all pieces of `layout` to out, shaped like queries.

    Shapes as in `paged_attention`.
    """
    for batch in layout.batches:
        rows = _query_rows(queries, batch, cache.shape[3], scale)
        keys = _gather(cache[:, 0], batch)
        values = _gather(cache[:, 1], batch)
        # 0 times an unwritten NaN would be NaN
        values.view(-1, values.shape[3] * values.shape[4]).index_fill_(0, batch.unwritten, 0.0)
        attended = _token_rows(_attend(rows, keys, values, batch.hidden), batch, queries.shape[1])
        real = attended if batch.results is None else attended.index_select(0, batch.results)
        out.index_copy_(0, batch.targets, real.to(out.dtype))


def _query_rows(queries: Tensor, batch: PieceBatch, kv_heads: int, scale: float) -> Tensor:
    """Return [kv_heads, pieces, query rows, head_dim], scaled, fp32, padding rows zero."""
    heads, head_dim = queries.shape[1:]
    group = heads // kv_heads
    rows = queries.new_zeros(
        (kv_heads, batch.num_pieces, padded_rows(batch.length, group), head_dim),
        dtype=torch.float32,
    )
    taken = queries.index_select(0, batch.queries).float().mul_(scale)
    taken = taken.view(batch.num_pieces, batch.length, kv_heads, group, head_dim)
    real = rows[:, :, : batch.length * group]
    real.unflatten(2, (batch.length, group)).copy_(taken.permute(2, 0, 1, 3, 4))
    return rows


def _gather(side: Tensor, batch: PieceBatch) -> Tensor:
    """Return one side of the cache as [pieces, tiles, KEY_TILE, kv_heads, head_dim], fp32."""
    blocks = side.index_select(0, batch.blocks).float()
    return blocks.view(batch.num_pieces, batch.num_tiles, KEY_TILE, *side.shape[2:])


def _attend(rows: Tensor, keys: Tensor, values: Tensor, hidden: Tensor) -> Tensor:
    """rows [G, W, M, D], keys and values [W, T, 64, G, D], hidden [W, T, M, 64] -> [G, W, M, D]."""
    kv_heads, pieces, num_rows, head_dim = rows.shape
    tiles = keys.shape[1]
    scores = rows.new_empty(kv_heads, pieces * tiles, num_rows, KEY_TILE)
    for head in range(kv_heads):
        repeated = rows[head].unsqueeze(1).expand(-1, tiles, -1, -1)
        torch.bmm(
            repeated.reshape(-1, num_rows, head_dim),
            keys[:, :, :, head].flatten(0, 1).transpose(1, 2),
            out=scores[head],
        )
    by_tile = scores.view(kv_heads, pieces, tiles, num_rows, KEY_TILE)
    by_tile.masked_fill_(hidden, float("-inf"))
    weights = by_tile.sub_(by_tile.amax(dim=4, keepdim=True).amax(dim=2, keepdim=True)).exp_()
    sums = rows.new_empty(kv_heads, pieces * tiles, num_rows, head_dim)
    for head in range(kv_heads):
        torch.bmm(scores[head], values[:, :, :, head].flatten(0, 1), out=sums[head])
    total = _fold_tiles(weights.sum(dim=-1, keepdim=True))
    return _fold_tiles(sums.view(kv_heads, pieces, tiles, num_rows, head_dim)).div_(total)


def _fold_tiles(x: Tensor) -> Tensor:
    """Sum x [G, W, T, ...] over T as a binary tree of neighbours; x is overwritten."""
    while x.shape[2] > 1:
        pairs = x.shape[2] // 2
        x[:, :, 0 : 2 * pairs : 2].add_(x[:, :, 1 : 2 * pairs : 2])
        x = x[:, :, ::2]
    return x.squeeze(2)


def _token_rows(attended: Tensor, batch: PieceBatch, heads: int) -> Tensor:
    """[kv_heads, pieces, query rows, head_dim] -> [pieces * length, heads, head_dim]."""
    kv_heads, pieces, _, head_dim = attended.shape
    group = heads // kv_heads
    real = attended[:, :, : batch.length * group].unflatten(2, (batch.length, group))
    return real.permute(1, 2, 0, 3, 4).reshape(pieces * batch.length, heads, head_dim)
