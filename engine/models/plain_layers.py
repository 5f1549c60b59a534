"""The layers of the Llama family, put together from one operation after another.

This is the specification of `kernels/decoder_layers`, and what runs on a GPU, or where the C++
kernels were not compiled. Weights that read the same input are fused: queries, keys and values
into one product, gate and up into another.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from cadenza.engine.kv_cache import KVCache
from cadenza.engine.models.batch import ModelBatch
from cadenza.kernels.decoder_layers import DecoderShape, LayerWeights
from cadenza.kernels.kv_write import kv_write
from cadenza.kernels.linear import Weight, linear, pack
from cadenza.kernels.paged_attention import (
    AttentionLayout,
    Workspace,
    paged_attention,
    plan_attention,
)
from cadenza.kernels.rms_norm import rms_norm
from cadenza.kernels.rotary_embedding import RotaryTables, rotary_embedding
from cadenza.kernels.silu_mul import silu_mul


class _Layer(NamedTuple):
    attention_norm: Tensor  # [hidden]
    qkv: Weight  # [(heads + 2 kv_heads) * head_dim, hidden]
    output: Weight  # [hidden, heads * head_dim]
    mlp_norm: Tensor  # [hidden]
    gate_up: Weight  # [2 * intermediate, hidden]
    down: Weight  # [hidden, intermediate]


class PlainLayers:
    """The layers of one model; the cache is all that a step changes."""

    def __init__(
        self, shape: DecoderShape, layers: Sequence[LayerWeights], rotary: RotaryTables
    ) -> None:
        self._shape = shape
        self._layers = tuple(_packed(layer) for layer in layers)
        self._rotary = rotary
        self._workspace = Workspace()

    def forward(self, hidden: Tensor, cache: KVCache, batch: ModelBatch) -> Tensor:
        """Return hidden [tokens, hidden] after the last layer; the cache gets keys and values."""
        rotary = self._rotary.at(batch.positions)
        attention = self._attention(batch, cache, hidden.device)
        for index, layer in enumerate(self._layers):
            hidden = self._layer(layer, hidden, cache.layer(index), batch, attention, rotary)
        return hidden

    def _attention(
        self, batch: ModelBatch, cache: KVCache, device: torch.device
    ) -> AttentionLayout:
        return plan_attention(
            batch.num_context,
            batch.num_new,
            batch.block_tables,
            block_size=cache.shape.block_size,
            group=self._shape.num_heads // self._shape.num_kv_heads,
            head_dim=self._shape.head_dim,
            device=device,
            workspace=self._workspace,
        )

    def _layer(
        self,
        layer: _Layer,
        hidden: Tensor,
        cache: Tensor,
        batch: ModelBatch,
        attention: AttentionLayout,
        rotary: RotaryTables,
    ) -> Tensor:
        eps = self._shape.norm_eps
        qkv = linear(rms_norm(hidden, layer.attention_norm, eps), layer.qkv)
        attended = self._attend(qkv, cache, batch, attention, rotary)
        hidden = hidden + linear(attended, layer.output)
        normed = rms_norm(hidden, layer.mlp_norm, eps)
        return hidden + linear(silu_mul(linear(normed, layer.gate_up)), layer.down)

    def _attend(
        self,
        qkv: Tensor,
        cache: Tensor,
        batch: ModelBatch,
        attention: AttentionLayout,
        rotary: RotaryTables,
    ) -> Tensor:
        """[tokens, (heads + 2 kv_heads) * head_dim] -> [tokens, heads * head_dim]."""
        shape = self._shape
        heads = qkv.view(len(qkv), -1, shape.head_dim)
        rotated = shape.num_heads + shape.num_kv_heads
        queries_keys = rotary_embedding(heads[:, :rotated], rotary.cos, rotary.sin)
        queries, keys = queries_keys.tensor_split((shape.num_heads,), dim=1)
        kv_write(keys, heads[:, rotated:], cache, batch.blocks, batch.offsets)
        scale = 1.0 / math.sqrt(shape.head_dim)
        return paged_attention(queries, cache, attention, scale).flatten(1)


def _packed(layer: LayerWeights) -> _Layer:
    return _Layer(
        layer.attention_norm,
        pack(layer.qkv),
        pack(layer.output),
        layer.mlp_norm,
        pack(torch.cat((layer.gate, layer.up))),
        pack(layer.down),
    )
