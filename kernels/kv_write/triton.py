"""Scatter of keys and values into cache blocks, in Triton: one program a token."""

from __future__ import annotations

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor


@triton.jit  # type: ignore[untyped-decorator]
def _kv_write_kernel(  # type: ignore[no-untyped-def]
    keys_ptr,
    values_ptr,
    cache_ptr,
    blocks_ptr,
    offsets_ptr,
    stride_kt,
    stride_kh,
    stride_vt,
    stride_vh,
    stride_cb,
    stride_cs,
    stride_cn,
    stride_ch,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    block = tl.load(blocks_ptr + token)
    if block < 0:
        return
    offset = tl.load(offsets_ptr + token)
    h = tl.arange(0, BLOCK_H)[:, None]
    d = tl.arange(0, BLOCK_D)[None, :]
    mask = (h < HEADS) & (d < HEAD_DIM)
    keys = tl.load(keys_ptr + token * stride_kt + h * stride_kh + d, mask=mask)
    values = tl.load(values_ptr + token * stride_vt + h * stride_vh + d, mask=mask)
    place = cache_ptr + block * stride_cb + offset * stride_cn + h * stride_ch + d
    tl.store(place, keys, mask=mask)
    tl.store(place + stride_cs, values, mask=mask)


def kv_write_triton(
    keys: Tensor, values: Tensor, cache: Tensor, blocks: Tensor, offsets: Tensor
) -> None:
    """Write keys and values into one layer's cache, as `kv_write_reference` does.

    The last dimensions have to be contiguous.
    """
    _validate(keys, values, cache, blocks, offsets)
    tokens, heads, head_dim = keys.shape
    if not tokens:
        return
    _kv_write_kernel[(tokens,)](
        keys,
        values,
        cache,
        blocks,
        offsets,
        *keys.stride()[:2],
        *values.stride()[:2],
        *cache.stride()[:4],
        HEADS=heads,
        HEAD_DIM=head_dim,
        BLOCK_H=triton.next_power_of_2(heads),
        BLOCK_D=triton.next_power_of_2(head_dim),
    )


def _validate(keys: Tensor, values: Tensor, cache: Tensor, blocks: Tensor, offsets: Tensor) -> None:
    if keys.shape != values.shape or cache.shape[3:] != keys.shape[1:] or cache.shape[1] != 2:
        raise ValueError(f"shapes {keys.shape}, {values.shape}, {cache.shape} do not fit")
    if not keys.dtype == values.dtype == cache.dtype:
        raise ValueError(f"dtypes {keys.dtype}, {values.dtype}, {cache.dtype} do not fit")
    if not blocks.shape == offsets.shape == keys.shape[:1]:
        raise ValueError("blocks and offsets must have one element a token")
    if not blocks.dtype == offsets.dtype == torch.int64:
        raise ValueError("blocks and offsets must be int64")
    if any(x.stride(-1) != 1 < x.shape[-1] for x in (keys, values, cache, blocks, offsets)):
        raise ValueError("the last dimensions must be contiguous")
