"""Paged attention of one new token a row, in Triton.

As in reference.py, for one query position, with the online softmax over tiles of keys: a running
maximum m, sum l and accumulator a, all rescaled by exp(m_old - m_new) when the maximum grows.
One program serves the query heads of one KV head of one row, in one order of tiles, so that a
row's result does not depend on the other rows.
Source: https://arxiv.org/abs/2205.14135 (algorithm 1)
"""

from __future__ import annotations

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from cadenza.kernels.paged_attention.layout import DecodeRows

_BLOCK_N = 64  # keys a tile
_LEAST_BLOCK = 16  # what a matrix instruction takes at least, in each dimension
_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


@triton.jit  # type: ignore[untyped-decorator]
def _paged_decode_kernel(  # type: ignore[no-untyped-def]
    q_ptr,
    cache_ptr,
    tables_ptr,
    tokens_ptr,
    lengths_ptr,
    out_ptr,
    scale,
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
    WIDEN: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1).to(tl.int64)
    token = tl.load(tokens_ptr + row).to(tl.int64)
    length = tl.load(lengths_ptr + row)

    m = tl.arange(0, BLOCK_M)
    d = tl.arange(0, BLOCK_D)
    n = tl.arange(0, BLOCK_N)
    heads = kv_head * GROUP + m  # [BLOCK_M]
    q_mask = (m < GROUP)[:, None] & (d < HEAD_DIM)[None, :]
    q = tl.load(
        q_ptr + token * stride_qt + heads[:, None] * stride_qh + d[None, :], mask=q_mask, other=0.0
    )  # [BLOCK_M, BLOCK_D]
    if WIDEN:
        q = q.to(tl.float32)

    largest = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for start in range(0, length, BLOCK_N):
        position = start + n  # [BLOCK_N]
        seen = position < length
        block = tl.load(
            tables_ptr + row * stride_tr + position // BLOCK_SIZE, mask=seen, other=0
        ).to(tl.int64)
        key = (
            block * stride_cb
            + (position % BLOCK_SIZE).to(tl.int64) * stride_cn
            + kv_head * stride_ch
        )
        kv_mask = seen[:, None] & (d < HEAD_DIM)[None, :]
        k_ptrs = cache_ptr + key[:, None] + d[None, :]  # [BLOCK_N, BLOCK_D]
        k = tl.load(k_ptrs, mask=kv_mask, other=0.0)
        v = tl.load(k_ptrs + stride_cs, mask=kv_mask, other=0.0)
        if WIDEN:
            k = k.to(tl.float32)
            v = v.to(tl.float32)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale  # [BLOCK_M, BLOCK_N]
        scores = tl.where(seen[None, :], scores, float("-inf"))
        new_largest = tl.maximum(largest, tl.max(scores, 1))
        shrink = tl.exp(largest - new_largest)
        weights = tl.exp(scores - new_largest[:, None])
        total = total * shrink + tl.sum(weights, 1)
        acc = acc * shrink[:, None]
        acc += tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        largest = new_largest

    out = acc / total[:, None]
    tl.store(
        out_ptr + token * stride_ot + heads[:, None] * stride_oh + d[None, :],
        out.to(out_ptr.dtype.element_ty),
        mask=q_mask,
    )


def paged_decode(
    queries: Tensor, cache: Tensor, rows: DecodeRows, scale: float, out: Tensor
) -> None:
    """Write the attention of the tokens of `rows` to out, shaped like queries.

    queries, out: [tokens, heads, head_dim]; cache: [num_blocks, 2, block_size, kv_heads,
    head_dim], block_size a power of two; fp16, bf16 or fp32, all the same, the last dimension
    contiguous.
    """
    _validate(queries, cache, rows, out)
    kv_heads, head_dim = cache.shape[3:]
    group = queries.shape[1] // kv_heads
    _paged_decode_kernel[(len(rows.tokens), kv_heads)](
        queries,
        cache,
        rows.block_tables,
        rows.tokens,
        rows.lengths,
        out,
        scale,
        *queries.stride()[:2],
        *cache.stride()[:4],
        rows.block_tables.stride(0),
        *out.stride()[:2],
        GROUP=group,
        HEAD_DIM=head_dim,
        BLOCK_SIZE=cache.shape[2],
        BLOCK_M=max(_LEAST_BLOCK, triton.next_power_of_2(group)),
        BLOCK_D=max(_LEAST_BLOCK, triton.next_power_of_2(head_dim)),
        BLOCK_N=_BLOCK_N,
        # Triton's interpreter keeps bf16 as integers and multiplies those
        WIDEN=triton.knobs.runtime.interpret and queries.dtype == torch.bfloat16,
    )


def _validate(queries: Tensor, cache: Tensor, rows: DecodeRows, out: Tensor) -> None:
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
    if {index.dtype for index in rows} != {torch.int32}:
        raise ValueError("tokens, lengths and block_tables must be int32")
    if not rows.tokens.shape == rows.lengths.shape == rows.block_tables.shape[:1]:
        raise ValueError("tokens, lengths and block_tables must have as many rows")
    if {index.stride(-1) for index in rows} != {1}:
        raise ValueError("tokens, lengths and the rows of block_tables must be contiguous")
