"""Launches of every Triton kernel at the shapes of real models, on tensors without memory.

Llama 3.1 8B has 32 heads, 8 of them KV heads, of 128 dimensions, a hidden size of 4,096 and an
intermediate one of 14,336; Gemma 2 9B has heads of 256, SmolLM2 135M of 64.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from cadenza.kernels.block_moves.triton import gather_blocks_triton, scatter_blocks_triton
from cadenza.kernels.gelu_mul.triton import gelu_mul_triton
from cadenza.kernels.kv_write.triton import kv_write_triton
from cadenza.kernels.linear.triton import linear_triton
from cadenza.kernels.logit_masks import Masks
from cadenza.kernels.logit_masks.triton import apply_masks_triton
from cadenza.kernels.paged_attention.query_tiles import (
    QueryTiles,
    Splits,
    least_query_rows,
    prefill_query_rows,
)
from cadenza.kernels.paged_attention.triton import paged_attention_triton
from cadenza.kernels.penalties.triton import penalised_triton
from cadenza.kernels.quantised_linear import QuantisedWeight
from cadenza.kernels.quantised_linear.triton import quantised_linear_triton
from cadenza.kernels.rms_norm.triton import add_rms_norm_triton, rms_norm_triton
from cadenza.kernels.rotary_embedding.triton import rotary_embedding_triton
from cadenza.kernels.sampling import SETTINGS, columns_of
from cadenza.kernels.sampling.triton import sample_triton
from cadenza.kernels.silu_mul.triton import silu_mul_triton

_TOKENS = 64
_BLOCK_SIZE = 16


def _tensor(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _ids(*shape: int) -> Tensor:
    return _tensor(*shape, dtype=torch.int32)


def _places() -> Tensor:
    return _tensor(_TOKENS, dtype=torch.int64)


def _attention(
    head_dim: int,
    group: int,
    splits: Splits | None = None,
    dtype: torch.dtype = torch.bfloat16,
    softcap: float | None = None,
) -> Callable[[], object]:
    """Of a prefill, where there are no splits."""

    def launch() -> None:
        kv_heads = 8
        queries = _tensor(_TOKENS, kv_heads * group, head_dim, dtype=dtype)
        cache = _tensor(1024, 32, 2, _BLOCK_SIZE, kv_heads, head_dim, dtype=dtype)[:, 0]
        rows = least_query_rows(group) if splits else prefill_query_rows(group, head_dim)
        columns = (_ids(_TOKENS) for _ in range(4))
        tiles = QueryTiles(*columns, _ids(_TOKENS, 64), rows, splits or Splits(1, 0))
        paged_attention_triton(queries, cache, tiles, 0.1, queries, softcap=softcap)

    return launch


def _kv_write() -> None:
    qkv = _tensor(_TOKENS, 48, 128)
    cache = _tensor(1024, 32, 2, _BLOCK_SIZE, 8, 128)[:, 0]
    kv_write_triton(qkv[:, 32:40], qkv[:, 40:], cache, _places(), _places())


def _gather() -> None:
    cache, staging = _tensor(1024, 32, 2, 16, 8, 128), _tensor(_TOKENS, 32, 2, 16, 8, 128)
    gather_blocks_triton(cache, _places(), staging)


def _scatter() -> None:
    cache, staging = _tensor(1024, 32, 2, 16, 8, 128), _tensor(_TOKENS, 32, 2, 16, 8, 128)
    scatter_blocks_triton(staging, cache, _places())


def _rms_norm(width: int) -> Callable[[], object]:
    return lambda: rms_norm_triton(_tensor(_TOKENS, width), _tensor(width), 1e-5)


def _add_rms_norm(width: int) -> Callable[[], object]:
    x = _tensor(_TOKENS, width)
    return lambda: add_rms_norm_triton(x, x, _tensor(width), 1e-5)


def _rotary_embedding() -> None:
    tables = _tensor(_TOKENS, 1, 64, dtype=torch.float32)
    rotary_embedding_triton(_tensor(_TOKENS, 48, 128)[:, :40], tables, tables)


def _silu_mul() -> None:
    silu_mul_triton(_tensor(_TOKENS, 2 * 14336))


def _gelu_mul() -> None:
    gelu_mul_triton(_tensor(_TOKENS, 2 * 14336))


def _linear(dtype: torch.dtype) -> None:
    linear_triton(_tensor(_TOKENS, 4096, dtype=dtype), _tensor(4096, 4096, dtype=dtype), dtype)


def _penalties() -> None:
    logits, counts = (_tensor(128256, dtype=torch.float32) for _ in range(2))
    penalised_triton(logits, _tensor(128256, dtype=torch.bool), counts, 1.1, 0.5, 0.5)


def _logit_masks() -> None:
    biases, words = _tensor(_TOKENS, dtype=torch.float32), _ids(_TOKENS, 128256 // 32)
    masks = Masks(_places(), biases, _ids(_TOKENS), words, 2)
    apply_masks_triton(_tensor(_TOKENS, 128256, dtype=torch.float32), masks)


def _sampling(shares: dict[str, float]) -> Callable[[], object]:
    settings = np.zeros(_TOKENS, dtype=SETTINGS)
    for name, value in shares.items():
        settings[name] = value
    logits = _tensor(_TOKENS, 128256, dtype=torch.float32)
    columns = columns_of(settings, 128256).sent(logits.device)
    return lambda: sample_triton(logits, columns, logits)


def _quantised_linear(
    rows: int, code: torch.dtype, dtype: torch.dtype = torch.bfloat16
) -> Callable[[], object]:
    weight = QuantisedWeight(_tensor(4096, 14336, dtype=code), _tensor(4096, dtype=torch.float32))
    x = _tensor(rows, 14336, dtype=dtype)
    return lambda: quantised_linear_triton(x, weight, dtype, invariant=False)


LAUNCHES: dict[str, Callable[[], object]] = {
    "decode, 64 dimensions": _attention(64, 3, Splits(8, 0)),
    "decode, 128 dimensions": _attention(128, 4, Splits(8, 0)),
    "decode, 256 dimensions": _attention(256, 2, Splits(8, 0), softcap=50.0),
    "decode, 128 dimensions, one split": _attention(128, 4, Splits(1, 0)),
    "decode, 128 dimensions, deterministic": _attention(128, 4, Splits(4, 512)),
    "decode, 128 dimensions, fp32": _attention(128, 4, Splits(8, 0), torch.float32),
    "decode, 256 dimensions, fp32": _attention(256, 2, Splits(8, 0), torch.float32),
    "prefill, 64 dimensions": _attention(64, 3),
    "prefill, 128 dimensions": _attention(128, 4),
    "prefill, 256 dimensions": _attention(256, 2, softcap=50.0),
    "prefill, 128 dimensions, fp32": _attention(128, 4, None, torch.float32),
    "prefill, 256 dimensions, fp32": _attention(256, 2, None, torch.float32),
    "8 KV heads of 128": _kv_write,
    "gather, blocks of 2 MiB": _gather,
    "scatter, blocks of 2 MiB": _scatter,
    "4,096 wide": _rms_norm(4096),
    "4,096 wide, with residual": _add_rms_norm(4096),
    "16,384 wide, with residual": _add_rms_norm(16384),
    "40 heads of 128": _rotary_embedding,
    "14,336 wide": _silu_mul,
    "14,336 wide, by GELU": _gelu_mul,
    "4,096 by 4,096": lambda: _linear(torch.bfloat16),
    "4,096 by 4,096, fp32": lambda: _linear(torch.float32),
    "16 rows, int8": _quantised_linear(16, torch.int8),
    "16 rows, fp8": _quantised_linear(16, torch.float8_e4m3fn),
    "64 rows, int8": _quantised_linear(64, torch.int8),
    "64 rows, fp8": _quantised_linear(64, torch.float8_e4m3fn),
    "64 rows, fp8, fp32": _quantised_linear(64, torch.float8_e4m3fn, torch.float32),
    "128,256 tokens, all three": _penalties,
    "128,256 tokens, biases and bits": _logit_masks,
    "128,256 tokens": _sampling({"temperature": 1.0, "top_p": 1.0}),
    "128,256 tokens, top-k and top-p": _sampling({"temperature": 1.0, "top_p": 0.9, "top_k": 40}),
}
