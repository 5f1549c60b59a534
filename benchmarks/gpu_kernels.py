"""What each Triton kernel has to move and to compute, and how long a GPU needs for that at least.

Prints bytes, operations and floors on an A100, an H100 and an H200 for a layer of Llama 3.1 8B in
bf16; where there is a GPU also what each kernel takes there. Random weights: no files, no network.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from cadenza.kernels.block_moves import gather_blocks
from cadenza.kernels.kv_write import kv_write
from cadenza.kernels.paged_attention.query_tiles import (
    decode_splits,
    least_query_rows,
    plan_tiles,
)
from cadenza.kernels.quantised_linear import QuantisedWeight, quantised_linear
from cadenza.kernels.rms_norm import add_rms_norm
from cadenza.kernels.rotary_embedding import rotary_embedding
from cadenza.kernels.sampling import SETTINGS, sample
from cadenza.kernels.silu_mul import silu_mul

HEADS, KV_HEADS, HEAD_DIM, HIDDEN, INTERMEDIATE, VOCABULARY = 32, 8, 128, 4096, 14336, 128256
ROWS, CONTEXT, PROMPT, BLOCK_SIZE, LAYERS, MOVED = 64, 2048, 2048, 16, 32, 32
HALF, WORD = 2, 4  # bytes of bf16, and of fp32


class Machine(NamedTuple):
    """A GPU by its data sheet."""

    name: str
    bandwidth: float  # bytes a second
    operations: float  # a second, bf16 on tensor cores, dense
    processors: int


# NVIDIA's data sheets of the SXM modules: A100 80GB, H100, H200
MACHINES = (
    Machine("A100", 2.039e12, 312e12, 108),
    Machine("H100", 3.35e12, 989e12, 132),
    Machine("H200", 4.8e12, 989e12, 132),
)


class Load(NamedTuple):
    """One call, and what it cannot do without."""

    name: str
    num_bytes: float
    operations: float
    prepare: Callable[[], Callable[[], object]]  # on a GPU; returns the call

    def floor_s(self, machine: Machine) -> float:
        return max(self.num_bytes / machine.bandwidth, self.operations / machine.operations)

    def bandwidth_share(self, machine: Machine) -> float:
        """What share of the bandwidth the call would use if it met its floor."""
        return self.num_bytes / machine.bandwidth / self.floor_s(machine)


def attention_bytes(queries: int, keys: int, splits: int) -> float:
    """Queries, results, keys and values once, as tiles of a row share them in the L2 cache.

    Partial results are written and read.
    """
    partial = least_query_rows(HEADS // KV_HEADS) * (HEAD_DIM + 2) * WORD * 2
    return (
        queries * HEADS * HEAD_DIM * HALF * 2
        + keys * KV_HEADS * HEAD_DIM * HALF * 2
        + (queries * KV_HEADS * splits * partial if splits > 1 else 0)
    )


def _randn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.bfloat16, device="cuda")


def _attention(num_context: int, num_new: int, rows: int) -> Callable[[], object]:
    from cadenza.kernels.paged_attention.triton import paged_attention_triton

    blocks = math.ceil((num_context + num_new) / BLOCK_SIZE)
    order = np.random.default_rng(0).permutation(rows * blocks).astype(np.int32)
    batches = plan_tiles(
        np.full(rows, num_context),
        np.full(rows, num_new),
        order.reshape(rows, blocks),
        kv_heads=KV_HEADS,
        group=HEADS // KV_HEADS,
        head_dim=HEAD_DIM,
        device=torch.device("cuda"),
    )
    cache = _randn(rows * blocks, 2, BLOCK_SIZE, KV_HEADS, HEAD_DIM)
    queries = _randn(rows * num_new, HEADS, HEAD_DIM)
    out = torch.empty_like(queries)

    def call() -> None:
        for tiles in batches:
            paged_attention_triton(queries, cache, tiles, HEAD_DIM**-0.5, out)

    return call


def _kv_write() -> Callable[[], object]:
    keys, cache = _randn(PROMPT, KV_HEADS, HEAD_DIM), _randn(256, 2, BLOCK_SIZE, KV_HEADS, HEAD_DIM)
    places = torch.arange(PROMPT, device="cuda")
    return lambda: kv_write(keys, keys, cache, places // BLOCK_SIZE, places % BLOCK_SIZE)


def _gather() -> Callable[[], object]:
    cache = _randn(256, LAYERS, 2, BLOCK_SIZE, KV_HEADS, HEAD_DIM)
    blocks, staging = torch.randperm(256, device="cuda")[:MOVED], torch.empty_like(cache[:MOVED])
    return lambda: gather_blocks(cache, blocks, staging)


def _add_rms_norm() -> Callable[[], object]:
    x, weight = _randn(PROMPT, HIDDEN), _randn(HIDDEN)
    return lambda: add_rms_norm(x, x, weight, 1e-5)


def _rotary() -> Callable[[], object]:
    x = _randn(PROMPT, HEADS + KV_HEADS, HEAD_DIM)
    tables = _randn(PROMPT, 1, HEAD_DIM // 2).float()
    return lambda: rotary_embedding(x, tables, tables)


def _silu_mul() -> Callable[[], object]:
    x = _randn(PROMPT, 2 * INTERMEDIATE)
    return lambda: silu_mul(x)


def _product(code: torch.dtype) -> Callable[[], object]:
    x = _randn(ROWS, HIDDEN)
    codes = torch.randint(-100, 100, (INTERMEDIATE, HIDDEN), device="cuda").to(code)
    weight = QuantisedWeight(codes, torch.ones(INTERMEDIATE, device="cuda"))
    return lambda: quantised_linear(x, weight)


def _sample(**shares: float) -> Callable[[], object]:
    settings = np.zeros(ROWS, dtype=SETTINGS)
    for name, value in {"temperature": 1.0, "top_p": 1.0, **shares}.items():
        settings[name] = value
    logits = torch.randn(ROWS, VOCABULARY, device="cuda")
    return lambda: sample(logits, settings, {})


def loads(processors: int) -> list[Load]:
    """All of them, with keys split as on a GPU with so many multiprocessors."""
    splits = decode_splits(ROWS * KV_HEADS, processors).number
    alone = decode_splits(KV_HEADS, processors).number
    pair = 4 * HEADS * HEAD_DIM  # operations a query and key: a product each for score and sum
    token = (HEADS + KV_HEADS) * HEAD_DIM
    product_bytes = INTERMEDIATE * HIDDEN + ROWS * (HIDDEN + INTERMEDIATE) * HALF
    product = (product_bytes, 2 * ROWS * HIDDEN * INTERMEDIATE)
    logits = ROWS * VOCABULARY * WORD
    # logits are read for their maximum and to draw; for top-p by 11 passes of a search, once for
    # their sum and once for ties
    return [
        Load(
            f"decode attention, {ROWS} rows of {CONTEXT}",
            attention_bytes(ROWS, ROWS * CONTEXT, splits),
            pair * ROWS * CONTEXT,
            lambda: _attention(CONTEXT - 1, 1, ROWS),
        ),
        Load(
            f"decode attention, 1 row of {8 * CONTEXT}",
            attention_bytes(1, 8 * CONTEXT, alone),
            pair * 8 * CONTEXT,
            lambda: _attention(8 * CONTEXT - 1, 1, 1),
        ),
        Load(
            f"prefill attention, {PROMPT} tokens",
            attention_bytes(PROMPT, PROMPT, 1),
            pair * PROMPT * (PROMPT + 1) / 2,
            lambda: _attention(0, PROMPT, 1),
        ),
        Load("KV write", 4 * PROMPT * KV_HEADS * HEAD_DIM * HALF, 0, _kv_write),
        Load(
            f"gather of {MOVED} blocks",
            2 * MOVED * LAYERS * 2 * BLOCK_SIZE * KV_HEADS * HEAD_DIM * HALF,
            0,
            _gather,
        ),
        Load("RMSNorm with residual", 4 * PROMPT * HIDDEN * HALF, 0, _add_rms_norm),
        Load("rotary", PROMPT * (2 * token * HALF + HEAD_DIM * WORD), 0, _rotary),
        Load("SiLU times up", 3 * PROMPT * INTERMEDIATE * HALF, 0, _silu_mul),
        Load(f"int8 product, {ROWS} rows", *product, lambda: _product(torch.int8)),
        Load(f"fp8 product, {ROWS} rows", *product, lambda: _product(torch.float8_e4m3fn)),
        Load(f"sampling, {ROWS} rows", 2 * logits, 0, _sample),
        Load(f"sampling with top-p, {ROWS} rows", 15 * logits, 0, lambda: _sample(top_p=0.9)),
    ]


def main() -> None:
    has_gpu = torch.cuda.is_available()
    print("| kernel | MB | GFLOP |", end="")
    print("".join(f" {machine.name}, us | share |" for machine in MACHINES), end="")
    print(f" {torch.cuda.get_device_name()}, us |" if has_gpu else "")
    for index in range(len(loads(1))):
        print(_row(index, has_gpu))


def _row(index: int, has_gpu: bool) -> str:
    first = loads(MACHINES[0].processors)[index]
    cells = [first.name, f"{first.num_bytes / 1e6:.1f}", f"{first.operations / 1e9:.1f}"]
    for machine in MACHINES:
        load = loads(machine.processors)[index]
        cells += [f"{1e6 * load.floor_s(machine):.1f}", f"{load.bandwidth_share(machine):.0%}"]
    if has_gpu:
        from triton.testing import do_bench  # type: ignore[import-untyped]

        cells.append(f"{1e3 * do_bench(first.prepare(), return_mode='median'):.1f}")
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
