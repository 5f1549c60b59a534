"""Paged attention in Triton, of decoding rows and of chunks of prompts.

As in reference.py, with the online softmax over tiles of keys: a running maximum m, sum l and
accumulator a, all rescaled by exp(m_old - m_new) when the maximum grows. One program serves one
query tile, one KV head and one split of the keys; where there are several splits, each leaves
(m, l, a), and `_combine_kernel` folds them in the order of their positions. A tile of keys of which
a position sees none leaves its m, l and a bit for bit as they were, so that windows and the other
positions of a tile do not show in a result.
Sources: https://arxiv.org/abs/2205.14135 (algorithm 1), https://arxiv.org/abs/2311.01282 (splits)
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from cadenza.kernels.paged_attention.query_tiles import KEY_TILE, LEAST_QUERY_ROWS, QueryTiles
from cadenza.kernels.triton_backend import INTERPRETED

_LEAST_DIM = 16  # what a matrix instruction takes
_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_UNLIMITED = 1 << 30  # positions a window reaches back


@triton.jit  # type: ignore[untyped-decorator]
def _range_of_split(  # type: ignore[no-untyped-def]
    position, count, window, num_splits, SPLIT_KEYS: tl.constexpr, BLOCK_N: tl.constexpr
):
    """Return the first key of the first split, and how many keys each has."""
    first = tl.maximum(position - window + 1, 0) // BLOCK_N * BLOCK_N
    if SPLIT_KEYS > 0:
        first = first // SPLIT_KEYS * SPLIT_KEYS
        keys = SPLIT_KEYS
    else:
        keys = tl.cdiv(tl.cdiv(position + count - first, BLOCK_N), num_splits) * BLOCK_N
    return first, keys


@triton.jit  # type: ignore[untyped-decorator]
def _attention_kernel(  # type: ignore[no-untyped-def]
    q_ptr,
    cache_ptr,
    first_tokens_ptr,
    positions_ptr,
    counts_ptr,
    rows_ptr,
    tables_ptr,
    out_ptr,
    partial_ptr,
    statistics_ptr,
    scale,
    softcap,
    window,
    num_splits,
    stride_qt,
    stride_qh,
    stride_cb,
    stride_cs,
    stride_cn,
    stride_ch,
    stride_tr,
    stride_ot,
    stride_oh,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SPLIT_KEYS: tl.constexpr,
    IN_PARTS: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    WIDEN: tl.constexpr,
):
    tile = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1).to(tl.int64)
    split = tl.program_id(2)
    count = tl.load(counts_ptr + tile)
    position = tl.load(positions_ptr + tile)
    first, split_keys = _range_of_split(position, count, window, num_splits, SPLIT_KEYS, BLOCK_N)
    start = first + split * split_keys
    end = tl.minimum(start + split_keys, position + count)
    if (count == 0) | (start >= end):
        return

    token = tl.load(first_tokens_ptr + tile).to(tl.int64)
    row = tl.load(rows_ptr + tile).to(tl.int64)
    m = tl.arange(0, BLOCK_M)
    d = tl.arange(0, BLOCK_D)
    n = tl.arange(0, BLOCK_N)
    step = m // GROUP  # [BLOCK_M], the position in the tile
    heads = kv_head * GROUP + m % GROUP  # [BLOCK_M]
    q_mask = (step < count)[:, None] & (d < HEAD_DIM)[None, :]
    q_ptrs = q_ptr + (token + step)[:, None] * stride_qt + heads[:, None] * stride_qh + d[None, :]
    q = tl.load(q_ptrs, mask=q_mask, other=0.0)  # [BLOCK_M, BLOCK_D]
    if WIDEN:
        q = q.to(tl.float32)
    seen_to = position + tl.minimum(step, count - 1)  # [BLOCK_M], the last key each sees
    seen_from = seen_to - window  # the last key that each sees no more

    # finite, so that a tile of keys none of which is seen changes nothing
    largest = tl.full([BLOCK_M], -1.0e30, tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for tile_start in range(start, end, BLOCK_N):
        key = tile_start + n  # [BLOCK_N]
        written = key < end
        block = tl.load(tables_ptr + row * stride_tr + key // BLOCK_SIZE, mask=written, other=0)
        place = (
            block.to(tl.int64) * stride_cb
            + (key % BLOCK_SIZE).to(tl.int64) * stride_cn
            + kv_head * stride_ch
        )
        kv_mask = written[:, None] & (d < HEAD_DIM)[None, :]
        k_ptrs = cache_ptr + place[:, None] + d[None, :]  # [BLOCK_N, BLOCK_D]
        k = tl.load(k_ptrs, mask=kv_mask, other=0.0)
        v = tl.load(k_ptrs + stride_cs, mask=kv_mask, other=0.0)
        if WIDEN:
            k = k.to(tl.float32)
            v = v.to(tl.float32)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale  # [BLOCK_M, BLOCK_N]
        if HAS_SOFTCAP:
            # c tanh(s / c)
            scores = softcap - 2.0 * softcap / (tl.exp(2.0 * scores / softcap) + 1.0)
        seen = (key[None, :] <= seen_to[:, None]) & (key[None, :] > seen_from[:, None])
        scores = tl.where(seen, scores, float("-inf"))
        new_largest = tl.maximum(largest, tl.max(scores, 1))
        shrink = tl.exp(largest - new_largest)
        weights = tl.exp(scores - new_largest[:, None])
        total = total * shrink + tl.sum(weights, 1)
        acc = acc * shrink[:, None]
        acc += tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        largest = new_largest

    if not IN_PARTS:
        out_ptrs = (
            out_ptr + (token + step)[:, None] * stride_ot + heads[:, None] * stride_oh + d[None, :]
        )
        result = acc / total[:, None]
        tl.store(out_ptrs, result.to(out_ptr.dtype.element_ty), mask=q_mask)
    else:
        partial = (tile * tl.num_programs(1) + kv_head) * num_splits + split
        partial_ptrs = partial_ptr + (partial * BLOCK_M + m)[:, None] * BLOCK_D + d[None, :]
        tl.store(partial_ptrs, acc)
        tl.store(statistics_ptr + partial * 2 * BLOCK_M + m, largest)
        tl.store(statistics_ptr + (partial * 2 + 1) * BLOCK_M + m, total)


@triton.jit  # type: ignore[untyped-decorator]
def _combine_kernel(  # type: ignore[no-untyped-def]
    partial_ptr,
    statistics_ptr,
    first_tokens_ptr,
    positions_ptr,
    counts_ptr,
    out_ptr,
    window,
    num_splits,
    stride_ot,
    stride_oh,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SPLIT_KEYS: tl.constexpr,
):
    """Fold (m, l, a) of the splits: m = max mᵢ, l = Σ lᵢ exp(mᵢ - m), a likewise; out = a / l."""
    tile = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1).to(tl.int64)
    count = tl.load(counts_ptr + tile)
    if count == 0:
        return
    position = tl.load(positions_ptr + tile)
    token = tl.load(first_tokens_ptr + tile).to(tl.int64)
    first, split_keys = _range_of_split(position, count, window, num_splits, SPLIT_KEYS, BLOCK_N)
    used = tl.cdiv(position + count - first, split_keys)

    m = tl.arange(0, BLOCK_M)
    d = tl.arange(0, BLOCK_D)
    step = m // GROUP
    heads = kv_head * GROUP + m % GROUP
    largest = tl.full([BLOCK_M], -1.0e30, tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for split in range(used):
        partial = (tile * tl.num_programs(1) + kv_head) * num_splits + split
        part_largest = tl.load(statistics_ptr + partial * 2 * BLOCK_M + m)
        part_total = tl.load(statistics_ptr + (partial * 2 + 1) * BLOCK_M + m)
        part = tl.load(partial_ptr + (partial * BLOCK_M + m)[:, None] * BLOCK_D + d[None, :])
        new_largest = tl.maximum(largest, part_largest)
        shrink = tl.exp(largest - new_largest)
        part_shrink = tl.exp(part_largest - new_largest)
        total = total * shrink + part_total * part_shrink
        acc = acc * shrink[:, None] + part * part_shrink[:, None]
        largest = new_largest
    out_ptrs = (
        out_ptr + (token + step)[:, None] * stride_ot + heads[:, None] * stride_oh + d[None, :]
    )
    mask = (step < count)[:, None] & (d < HEAD_DIM)[None, :]
    tl.store(out_ptrs, (acc / total[:, None]).to(out_ptr.dtype.element_ty), mask=mask)


def paged_attention_triton(
    queries: Tensor,
    cache: Tensor,
    tiles: QueryTiles,
    scale: float,
    out: Tensor,
    window: int | None = None,
    softcap: float | None = None,
) -> None:
    """Write the attention of the tokens of `tiles` to out, shaped like queries.

    queries, out: [tokens, heads, head_dim]; cache: [num_blocks, 2, block_size, kv_heads,
    head_dim], block_size a power of two; fp16, bf16 or fp32, all the same, the last dimension
    contiguous. window: how many tokens one sees, itself among them; None: all before it. softcap c:
    scores become c tanh(score / c).
    """
    _validate(queries, cache, tiles, out)
    kv_heads, head_dim = cache.shape[3:]
    num_splits, split_keys = tiles.splits
    shape = _program_shape(tiles.query_rows, head_dim, queries.dtype)
    sizes = {
        "GROUP": queries.shape[1] // kv_heads,
        "HEAD_DIM": head_dim,
        "BLOCK_M": tiles.query_rows,
        "BLOCK_D": max(_LEAST_DIM, triton.next_power_of_2(head_dim)),
        "BLOCK_N": shape.keys,
        "SPLIT_KEYS": split_keys,
    }
    # with splits at fixed positions always, so that rows long and short meet the same code
    in_parts = num_splits > 1 or split_keys > 0
    grid = (len(tiles.counts), kv_heads, num_splits)
    partial = statistics = out
    if in_parts:
        rows, dims = sizes["BLOCK_M"], sizes["BLOCK_D"]
        partial = torch.empty((*grid, rows, dims), dtype=torch.float32, device=out.device)
        statistics = torch.empty((*grid, 2, rows), dtype=torch.float32, device=out.device)
    reach = _UNLIMITED if window is None else window
    _attention_kernel[grid](
        queries,
        cache,
        *tiles[:5],
        out,
        partial,
        statistics,
        scale,
        softcap or 0.0,
        reach,
        num_splits,
        *queries.stride()[:2],
        *cache.stride()[:4],
        tiles.block_tables.stride(0),
        *out.stride()[:2],
        **sizes,
        BLOCK_SIZE=cache.shape[2],
        IN_PARTS=in_parts,
        HAS_SOFTCAP=softcap is not None,
        # Triton's interpreter keeps bf16 as integers and multiplies those
        WIDEN=INTERPRETED and queries.dtype == torch.bfloat16,
        num_warps=shape.warps,
        num_stages=shape.stages,
    )
    if in_parts:
        _combine_kernel[grid[:2]](
            partial, statistics, *tiles[:3], out, reach, num_splits, *out.stride()[:2], **sizes
        )


class _ProgramShape(NamedTuple):
    keys: int  # looked at at once
    warps: int
    stages: int  # tiles of keys under way


def _program_shape(query_rows: int, head_dim: int, dtype: torch.dtype) -> _ProgramShape:
    """Return a shape that spills no registers, and takes at most 128 of them where rows decode.

    fp32 is multiplied without tensor cores, with both factors in registers.
    """
    if dtype == torch.float32:
        return _ProgramShape(16, 8, 1)
    is_prefill = query_rows > 2 * LEAST_QUERY_ROWS
    return _ProgramShape(KEY_TILE, 8 if head_dim > 128 or is_prefill else 4, 3)


def _validate(queries: Tensor, cache: Tensor, tiles: QueryTiles, out: Tensor) -> None:
    if queries.dtype not in _DTYPES or not queries.dtype == cache.dtype == out.dtype:
        raise ValueError(f"dtypes {queries.dtype}, {cache.dtype}, {out.dtype} do not fit")
    if queries.shape != out.shape or queries.shape[2] != cache.shape[4]:
        raise ValueError(f"shapes {queries.shape}, {cache.shape}, {out.shape} do not fit")
    if queries.shape[1] % cache.shape[3]:
        raise ValueError(f"{queries.shape[1]} heads cannot share {cache.shape[3]} KV heads")
    if cache.shape[2] & (cache.shape[2] - 1):
        raise ValueError(f"the block size {cache.shape[2]} is not a power of two")
    if not queries.stride(2) == cache.stride(4) == out.stride(2) == 1:
        raise ValueError("the last dimension of queries, cache and out must be contiguous")
    columns = tiles[:4]
    if {index.dtype for index in (*columns, tiles.block_tables)} != {torch.int32}:
        raise ValueError("columns of tiles and block_tables must be int32")
    if len({index.shape for index in columns}) != 1 or columns[0].ndim != 1:
        raise ValueError("columns of tiles must be equally long")
    if any(i.stride(-1) != 1 < i.shape[-1] for i in (*columns, tiles.block_tables)):
        raise ValueError("columns of tiles and rows of block_tables must be contiguous")
