"""Paged causal attention in plain torch, row-invariant on the CPU: this is the specification.

For query row i and a KV head, with sᵢⱼ = scale qᵢ·kⱼ over the keys j that i may see:
out = Σⱼ exp(sᵢⱼ - maxⱼ s) vⱼ / Σⱼ exp(sᵢⱼ - maxⱼ s). With a softcap c, sᵢⱼ becomes c tanh(sᵢⱼ / c)
before (https://arxiv.org/abs/2408.00118, section 2). All in fp32. Scores and sums are made in
tiles of 64 keys; the maximum is exact in any order; sums of tiles are folded pairwise by tile
number, so that tiles past a row's end, which are zero, leave every bit as it is.
Source of the blocks: https://arxiv.org/abs/2309.06180
"""

from __future__ import annotations

import torch
from torch import Tensor

from cadenza.kernels.paged_attention.layout import AttentionLayout, PieceBatch
from cadenza.kernels.paged_attention.tiles import KEY_TILE, padded_rows
from cadenza.kernels.paged_attention.workspace import Workspace
from cadenza.kernels.soft_cap import soft_capped_


def paged_attention_reference(
    queries: Tensor, cache: Tensor, layout: AttentionLayout, scale: float, out: Tensor
) -> None:
    """Write the attention of all pieces of `layout` to out, shaped like queries.

    Shapes as in `paged_attention`.
    """
    workspace = layout.workspace
    for batch in layout.batches:
        rows = _query_rows(queries, batch, cache.shape[3], scale, workspace)
        keys = _gather(cache[:, 0], batch, "keys", workspace)
        values = _gather(cache[:, 1], batch, "values", workspace)
        # 0 times an unwritten NaN would be NaN
        values.view(-1, values.shape[3] * values.shape[4]).index_fill_(0, batch.unwritten, 0.0)
        attended = _attend(rows, keys, values, batch.hidden, workspace, layout.softcap)
        tokens = _token_rows(attended, batch, queries.shape[1])
        real = tokens if batch.results is None else tokens.index_select(0, batch.results)
        out.index_copy_(0, batch.targets, real.to(out.dtype))


def _query_rows(
    queries: Tensor, batch: PieceBatch, kv_heads: int, scale: float, workspace: Workspace
) -> Tensor:
    """Return [kv_heads, pieces, query rows, head_dim], scaled, fp32; padding rows undefined."""
    heads, head_dim = queries.shape[1:]
    group = heads // kv_heads
    shape = (kv_heads, batch.num_pieces, padded_rows(batch.length, group), head_dim)
    rows = workspace.take("rows", shape, queries, torch.float32)
    taken = queries.index_select(0, batch.queries)
    taken = taken.view(batch.num_pieces, batch.length, kv_heads, group, head_dim)
    real = rows[:, :, : batch.length * group]
    real = real.view(kv_heads, batch.num_pieces, batch.length, group, head_dim)
    real.copy_(taken.permute(2, 0, 1, 3, 4))
    return rows.mul_(scale)


def _gather(side: Tensor, batch: PieceBatch, name: str, workspace: Workspace) -> Tensor:
    """Return one side of the cache as [pieces, tiles, KEY_TILE, kv_heads, head_dim], fp32."""
    shape = (len(batch.blocks), *side.shape[1:])
    gathered = workspace.take(name, shape, side, side.dtype)
    torch.index_select(side, 0, batch.blocks, out=gathered)
    if side.dtype != torch.float32:
        gathered = workspace.take(name, shape, side, torch.float32).copy_(gathered)
    return gathered.view(batch.num_pieces, batch.num_tiles, KEY_TILE, *side.shape[2:])


def _attend(
    rows: Tensor,
    keys: Tensor,
    values: Tensor,
    hidden: Tensor,
    workspace: Workspace,
    softcap: float | None,
) -> Tensor:
    """rows [G, W, M, D], keys and values [W, T, 64, G, D], hidden [W, T, M, 64] -> [G, W, M, D]."""
    kv_heads, pieces, num_rows, head_dim = rows.shape
    tiles = keys.shape[1]
    products = (kv_heads, pieces * tiles, num_rows)
    scores = workspace.take("scores", (*products, KEY_TILE), rows, torch.float32)
    for head in range(kv_heads):
        repeated = rows[head].unsqueeze(1).expand(-1, tiles, -1, -1)
        torch.bmm(
            repeated.reshape(-1, num_rows, head_dim),
            keys[:, :, :, head].flatten(0, 1).transpose(1, 2),
            out=scores[head],
        )
    weights = scores.view(kv_heads, pieces, tiles, num_rows, KEY_TILE)
    if softcap is not None:
        soft_capped_(weights, softcap)
    weights.masked_fill_(hidden, float("-inf"))
    most = weights.amax(dim=4, keepdim=True).amax(dim=2, keepdim=True)
    weights.sub_(most).exp_()
    sums = workspace.take("sums", (*products, head_dim), rows, torch.float32)
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
    real = attended[:, :, : batch.length * group]
    real = real.view(kv_heads, pieces, batch.length, group, head_dim)
    return real.permute(1, 2, 0, 3, 4).reshape(pieces * batch.length, heads, head_dim)
