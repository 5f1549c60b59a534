"""What the machine allows: the rate at which it reads memory and multiplies, and what follows.

A load's limit, in output tokens a second, for S streams of I tokens in and O out, which begin
together, on a machine that reads B bytes and computes F operations a second, G in the products of
layers:

    limit   = S * O / (prefill + step(1) + ... + step(O - 1))
    prefill = max(S * (2 p I / G + (a I (I + 1) / 2 + 2 h) / F), w / B)
    step(t) = max(S * (2 p / G + (a (I + t) + 2 h) / F), (w + S k (I + t)) / B)

p are the weights of all layers, h those of the head, w the bytes of both; a the operations for a
query and a key in all layers, 4 x layers x heads x head_dim; k the bytes of a token in the KV
cache, 2 x layers x kv_heads x head_dim x 2. All of it is in the model's config.json. In bf16 G is
F and a weight has two bytes, or those that our kernels pack it in; with int8 products G is their
rate, and a weight of a layer has one byte. Norms, rotations, sampling and what is not the model
cost nothing. Each weight is read once a step: what of them is in the processor's caches already is
not counted, except that the bytes are read from a buffer of the weights' size, which may be there
likewise.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from serving_load import Load

from cadenza.kernels.int8_linear import pack_int8
from cadenza.kernels.linear import linear, pack
from cadenza.kernels.linear.native import PackedWeight
from cadenza.kernels.native import library

_REPEATS = 5
_ROWS, _INNER = 1024, 2048  # of the product that is timed


class Pace(NamedTuple):
    """What a machine does in a second."""

    bytes: float  # read
    operations: float  # of bf16 products; a multiplication and an addition are two
    int8_operations: float

    def or_better(self, other: Pace) -> Pace:
        return Pace(*map(max, self, other))


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSize:
    """What a model of the Llama family costs to run."""

    layers: int  # weights, p
    head: int  # weights, h
    pair: int  # operations for a query and a key, a
    kv_bytes: int  # a token, k

    @classmethod
    def of(cls, folder: Path) -> ModelSize:
        config = json.loads((folder / "config.json").read_text())
        hidden, inner = config["hidden_size"], config["intermediate_size"]
        heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        head_dim = config.get("head_dim") or hidden // heads
        attention = hidden * head_dim * (heads + 2 * kv_heads) + heads * head_dim * hidden
        num_layers = config["num_hidden_layers"]
        return cls(
            layers=num_layers * (attention + 3 * hidden * inner),
            head=config["vocab_size"] * hidden,
            pair=4 * num_layers * heads * head_dim,
            kv_bytes=2 * num_layers * kv_heads * head_dim * torch.bfloat16.itemsize,
        )

    @property
    def weights(self) -> int:
        return self.layers + self.head


def limit(load: Load, size: ModelSize, pace: Pace, *, int8: bool) -> float:
    """Return output tokens a second at most."""
    head_bytes = bfloat16_bytes()
    layer_bytes = 1 if int8 else head_bytes
    layer_operations = pace.int8_operations if int8 else pace.operations
    weights_s = (layer_bytes * size.layers + head_bytes * size.head) / pace.bytes
    head, streams = 2 * size.head, load.streams
    token_s = 2 * size.layers / layer_operations
    pairs = size.pair * load.input * (load.input + 1) / 2
    prompt_s = token_s * load.input + (pairs + head) / pace.operations
    took_s = max(streams * prompt_s, weights_s)
    for context in range(load.input + 1, load.input + load.output):
        computed_s = token_s + (size.pair * context + head) / pace.operations
        read_s = weights_s + streams * size.kv_bytes * context / pace.bytes
        took_s += max(streams * computed_s, read_s)
    return streams * load.output / took_s


@cache
def bfloat16_bytes() -> float:
    """Bytes of a weight of bf16, as our kernels pack those whose values lie close together.

    All of the demo model's do. Where a model's do not, its limit is lower than what is told here.
    """
    weight = pack(torch.ones(_ROWS, _INNER, dtype=torch.bfloat16))
    if not isinstance(weight, PackedWeight):
        return torch.bfloat16.itemsize
    found = library()
    assert found is not None
    return found.packed_bytes(_ROWS, _INNER, weight.format) / (_ROWS * _INNER)


def measure(size: ModelSize) -> Pace:
    """Time the fastest known ways of reading as many bytes as the weights have, and of a product.

    Reading: a sum, and a product with a vector, of MKL and of our own kernels. The product: ours
    and oneDNN's; of int8 ours.
    """
    num_bytes = torch.bfloat16.itemsize * size.weights
    rows = num_bytes // (_INNER * torch.float32.itemsize)
    matrix, vector = torch.ones(rows, _INNER), torch.ones(_INNER)
    packed = pack(matrix)
    read_s = min(
        _best_s(matrix.sum),
        _best_s(lambda: torch.mv(matrix, vector)),
        _best_s(lambda: linear(vector[None], packed)),
    )
    x = torch.ones(_ROWS, _INNER, dtype=torch.bfloat16)
    weight = torch.ones(_INNER, _INNER, dtype=torch.bfloat16)
    packed = pack(weight)
    product_s = min(
        _best_s(lambda: torch.nn.functional.linear(x, weight)),
        _best_s(lambda: linear(x, packed)),
    )
    quantised = pack_int8(weight)
    int8_s = _best_s(lambda: linear(x, quantised))
    operations = 2 * _ROWS * _INNER**2
    return Pace(matrix.nbytes / read_s, operations / product_s, operations / int8_s)


def _best_s(run: Callable[[], object]) -> float:
    took = []
    with torch.inference_mode():
        for _ in range(_REPEATS + 1):
            started = time.perf_counter()
            run()
            took.append(time.perf_counter() - started)
    return min(took)
