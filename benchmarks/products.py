"""Matrix products of the demo model's shapes: ours beside oneDNN's, int8 beside bf16, in turns.

Weights of a shape are many, and read one after another, so that they come from memory as in a step.
Each figure is the best of some rounds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from cadenza.kernels.int8_linear import pack_int8
from cadenza.kernels.linear import Weight, native, onednn

SHAPES = ((960, 576), (576, 576), (3072, 576), (576, 1536), (49152, 576))  # out, in
ROWS = (1, 8, 32, 512)
_WEIGHT_BYTES = 200e6  # more than caches hold
_MOST_VALUES = 1 << 23  # of an output that many rows have
_ROUNDS = 5

_Product = Callable[[Tensor], Tensor]
_Maker = Callable[[Tensor], Weight]


def products(dtype: torch.dtype) -> list[dict[str, Any]]:
    """Return microseconds a product, by shape, rows and who multiplied."""
    makers = _makers(dtype)
    return [result for shape in SHAPES for result in _of_shape(shape, dtype, makers)]


def _makers(dtype: torch.dtype) -> dict[str, _Maker]:
    makers: dict[str, _Maker] = {}
    if dtype == torch.int8:
        makers["int8"] = pack_int8
        dtype = torch.bfloat16
    if native.is_supported(dtype):
        makers[f"native {native.fastest(dtype)}"] = native.PackedWeight
    if onednn.is_supported(dtype) and len(makers) < 2:
        makers["onednn"] = onednn.PackedWeight
    return makers


def _of_shape(
    shape: tuple[int, int], dtype: torch.dtype, makers: dict[str, _Maker]
) -> list[dict[str, Any]]:
    num_bytes = shape[0] * shape[1] * dtype.itemsize
    dtype = torch.bfloat16 if dtype == torch.int8 else dtype
    plain = [torch.randn(shape).to(dtype) for _ in range(max(1, int(_WEIGHT_BYTES / num_bytes)))]
    weights = {name: [make(weight).multiply for weight in plain] for name, make in makers.items()}
    del plain
    results = []
    for rows in ROWS:
        if rows * shape[0] > _MOST_VALUES:
            continue
        x = torch.randn(rows, shape[1]).to(dtype)
        some = max(1, 512 // rows)  # of the weights: many rows take long, and read them from caches
        took = dict.fromkeys(weights, float("inf"))
        for _ in range(_ROUNDS):
            for name, multiply in weights.items():
                took[name] = min(took[name], _seconds(multiply[:some], x))
        us = {name: round(1e6 * seconds, 1) for name, seconds in took.items()}
        results.append({"shape": shape, "rows": rows, "bytes": num_bytes, "us": us})
    return results


def _seconds(weights: list[_Product], x: Tensor) -> float:
    started = time.perf_counter()
    for multiply in weights:
        multiply(x)
    return (time.perf_counter() - started) / len(weights)


def show(dtype: str, results: list[dict[str, Any]], floor_bytes_s: float) -> None:
    """Print a line a product, GF for 1e9 operations a second; the floor is reading the weight."""
    print(f"{dtype}, us a product; memory is read at {floor_bytes_s / 1e9:.1f} GB/s")
    for result in results:
        out_features, in_features = result["shape"]
        operations = 2 * result["rows"] * out_features * in_features
        num_bytes, took = result["bytes"], list(result["us"].values())
        shown = "   ".join(
            f"{name} {us:.0f}: {num_bytes / us / 1e3:.1f} GB/s, {operations / us / 1e3:.0f} GF"
            for name, us in result["us"].items()
        )
        print(
            f"{f'{out_features} x {in_features}':12} rows {result['rows']:<4}"
            f" floor {1e6 * num_bytes / floor_bytes_s:.0f}   {shown}"
            f"   ratio {took[-1] / took[0]:.2f}"
        )
