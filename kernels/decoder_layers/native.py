"""All layers of a model in one call of our C++ kernels, over weights that were packed once.

What passes from layer to layer stays in fp32 whatever the dtype of the weights; inputs of products,
keys, values and the softmax's weights are rounded to that dtype. Scores, sums and norms are fp32.
Each of them is added in an order that neither other rows, nor chunks, blocks or threads change, so
that a row is bitwise the same in any batch. Levels of instruction sets differ from each other.

Int8 products take what was normed as it is, without that rounding. They quantise each of their
inputs once, those of queries, keys and values twice: as `kernels.int8_linear.TwiceQuantised`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cadenza.kernels.int8_linear import PackedInt8Weight
from cadenza.kernels.linear import native as products
from cadenza.kernels.linear.native import DTYPES, PackedWeight
from cadenza.kernels.native import INT8, Layer, Library, Model, PackedMatrix, Step, Times, library
from cadenza.kernels.rotary_embedding import RotaryTables

_MOST_HEAD_DIM, _MOST_GROUP = 256, 32  # of attention.h: what one thread works with is of fixed size
_DIMS = 32  # a head has a multiple: no unit of keys or values has a part of a panel
_GATES = 16  # and as many ups are neighbours in a packed weight


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderShape:
    """Sizes that all layers share."""

    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float


class LayerWeights(NamedTuple):
    """One layer's weights, as checkpoints have them."""

    attention_norm: Tensor  # [hidden]
    qkv: Tensor  # [(heads + 2 kv_heads) * head_dim, hidden]
    output: Tensor  # [hidden, heads * head_dim]
    mlp_norm: Tensor  # [hidden]
    gate: Tensor  # [intermediate, hidden]
    up: Tensor  # [intermediate, hidden]
    down: Tensor  # [hidden, intermediate]
    qkv_bias: Tensor | None = None  # [(heads + 2 kv_heads) * head_dim]
    query_norm: Tensor | None = None  # [head_dim], as the next
    key_norm: Tensor | None = None
    window: int | None = None  # tokens that a token sees, itself included; None: all before it


class PartTimes(NamedTuple):
    """Seconds that the parts of all calls took."""

    products_s: float
    attention_s: float
    rest_s: float


class _PackedLayer(NamedTuple):
    attention_norm: Tensor
    qkv: PackedWeight
    output: PackedWeight
    mlp_norm: Tensor
    gate_up: PackedWeight
    down: PackedWeight
    qkv_bias: Tensor | None
    query_norm: Tensor | None
    key_norm: Tensor | None
    window: int


def is_supported(shape: DecoderShape, dtype: torch.dtype, device: torch.device) -> bool:
    """Tell whether there are kernels for such layers."""
    return (
        device.type == "cpu"
        and products.is_supported(dtype)
        and shape.head_dim % _DIMS == 0
        and shape.head_dim <= _MOST_HEAD_DIM
        and shape.num_heads // shape.num_kv_heads <= _MOST_GROUP
    )


class NativeLayers:
    """The layers of one model; all that a step changes is in the cache, and the times.

    One thread may call it at a time.
    """

    def __init__(
        self,
        shape: DecoderShape,
        layers: Iterable[LayerWeights],
        rotary: RotaryTables,
        level: str | None = None,
        *,
        int8: bool = False,
    ) -> None:
        """layers: at least one, each packed before the next is asked for; level: one of
        `kernels.linear.native.levels()`, the fastest by default; int8: products are those of
        `kernels.int8_linear`, all else is as without.

        Raises ValueError and MemoryError as `PackedWeight` does, or `PackedInt8Weight`.
        """
        found = library()
        assert found is not None, "is_supported was not asked"
        self._library: Library = found
        self._shape = shape
        kind = PackedInt8Weight if int8 else PackedWeight
        self._packed = tuple(_packed(weights, partial(kind, level=level)) for weights in layers)
        self._dtype = self._packed[0].qkv.dtype
        self._rotary = RotaryTables(rotary.cos.contiguous(), rotary.sin.contiguous())
        self._layers = (Layer * len(self._packed))(*(_addresses(layer) for layer in self._packed))
        self._model = Model(
            self._packed[0].qkv.level,
            DTYPES[self._dtype],
            INT8 if int8 else DTYPES[self._dtype],
            len(self._packed),
            self._layers,
            shape.hidden_size,
            shape.num_heads,
            shape.num_kv_heads,
            shape.head_dim,
            _padded(shape.intermediate_size),
            shape.norm_eps,
            1.0 / math.sqrt(shape.head_dim),
            self._rotary.cos.data_ptr(),
            self._rotary.sin.data_ptr(),
        )
        self._times = Times()

    @property
    def times(self) -> PartTimes:
        """What all calls took so far."""
        times = self._times
        return PartTimes(times.products / 1e9, times.attention / 1e9, times.rest / 1e9)

    def forward(
        self,
        hidden: Tensor,
        cache: Tensor,
        *,
        positions: Tensor,
        blocks: Tensor,
        offsets: Tensor,
        num_context: npt.NDArray[np.int32],
        num_new: npt.NDArray[np.int32],
        block_tables: npt.NDArray[np.int32],
    ) -> Tensor:
        """Return hidden [tokens, hidden], fp32, after the last layer; it is changed in place.

        cache: [num_blocks, layers, 2, block_size, kv_heads, head_dim] of the weights' dtype, which
        gets the new keys and values; within a block they lie as products read them, in an order
        of our own. positions, blocks, offsets: [tokens] int64. num_context,
        num_new: [rows]; block_tables: [rows, blocks]. Rows lie one after another.
        Raises ValueError for what is not so, and MemoryError.
        """
        self._check(hidden, cache)
        _check_lengths(
            len(hidden), (positions, blocks, offsets), num_context, num_new, block_tables
        )
        num_context, num_new, tables = (
            np.ascontiguousarray(array, dtype=np.int32)
            for array in (num_context, num_new, block_tables)
        )
        step = Step(
            len(hidden),
            len(num_new),
            positions.data_ptr(),
            blocks.data_ptr(),
            offsets.data_ptr(),
            num_context.ctypes.data,
            num_new.ctypes.data,
            tables.ctypes.data,
            tables.shape[1],
            cache.data_ptr(),
            cache.shape[3],
            hidden.data_ptr(),
        )
        self._library.layers(self._model, step, torch.get_num_threads(), self._times)
        return hidden

    def _check(self, hidden: Tensor, cache: Tensor) -> None:
        shape = self._shape
        expected = [len(self._packed), 2, cache.shape[3], shape.num_kv_heads, shape.head_dim]
        if (
            list(cache.shape[1:]) != expected
            or cache.dtype != self._dtype
            or cache.shape[3] & (cache.shape[3] - 1)
            or not cache.is_contiguous()
        ):
            raise ValueError(
                f"the cache is {list(cache.shape)} of {cache.dtype};"
                f" the layers take [blocks, {str(expected)[1:]} of {self._dtype}, contiguous,"
                " where a block has a power of two tokens"
            )
        if (
            hidden.ndim != 2
            or hidden.shape[1] != shape.hidden_size
            or hidden.dtype != torch.float32
            or not hidden.is_contiguous()
        ):
            raise ValueError(
                f"hidden is {list(hidden.shape)} of {hidden.dtype};"
                f" the layers take [tokens, {shape.hidden_size}] of torch.float32, contiguous"
            )


def _check_lengths(
    tokens: int, places: Sequence[Tensor], *rows: npt.NDArray[np.integer[Any]]
) -> None:
    """Each of places is of all tokens; rows: num_context, num_new, block_tables."""
    for place in places:
        if place.shape != (tokens,) or place.dtype != torch.int64 or not place.is_contiguous():
            raise ValueError(
                f"positions, blocks or offsets are {list(place.shape)} of {place.dtype};"
                f" {tokens} tokens have [{tokens}] of torch.int64, contiguous"
            )
    num_context, num_new, tables = rows
    if not len(num_context) == len(num_new) == len(tables) or num_new.sum() != tokens:
        raise ValueError(
            f"num_context has {len(num_context)} rows, num_new {len(num_new)} of"
            f" {num_new.sum()} tokens, block_tables {len(tables)}; hidden has {tokens} tokens"
        )


def _packed(weights: LayerWeights, pack: Callable[[Tensor], PackedWeight]) -> _PackedLayer:
    return _PackedLayer(
        _float32(weights.attention_norm),
        pack(weights.qkv),
        pack(weights.output),
        _float32(weights.mlp_norm),
        pack(_interleaved(weights.gate, weights.up)),
        pack(_wide(weights.down)),
        None if weights.qkv_bias is None else _float32(weights.qkv_bias),
        None if weights.query_norm is None else _float32(weights.query_norm),
        None if weights.key_norm is None else _float32(weights.key_norm),
        weights.window or 0,
    )


def _float32(tensor: Tensor) -> Tensor:
    return tensor.float().contiguous()


def _padded(intermediate_size: int) -> int:
    return -(-intermediate_size // _GATES) * _GATES


def _interleaved(gate: Tensor, up: Tensor) -> Tensor:
    """Return 16 rows of gate, the 16 of up that they gate, and so on; zeros at the end."""
    width = _padded(len(gate))
    pairs = [_filled(part, rows=width).view(-1, _GATES, part.shape[1]) for part in (gate, up)]
    return torch.stack(pairs, dim=1).flatten(0, 2)


def _wide(down: Tensor) -> Tensor:
    """Return down with inputs, all 0, for what `_interleaved` has added."""
    return _filled(down.T, rows=_padded(down.shape[1])).T


def _filled(weight: Tensor, rows: int) -> Tensor:
    """Return the weight with as many rows, those that it lacks all 0; itself where none are."""
    missing = rows - len(weight)
    return torch.nn.functional.pad(weight, (0, 0, 0, missing)) if missing else weight


def _addresses(layer: _PackedLayer) -> Layer:
    return Layer(
        layer.attention_norm.data_ptr(),
        _matrix(layer.qkv),
        _matrix(layer.output),
        layer.mlp_norm.data_ptr(),
        _matrix(layer.gate_up),
        _matrix(layer.down),
        _address(layer.qkv_bias),
        _address(layer.query_norm),
        _address(layer.key_norm),
        layer.window,
    )


def _matrix(weight: PackedWeight) -> PackedMatrix:
    return PackedMatrix(weight.address, weight.format)


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
