"""The layers of any of our families, put together from one operation after another.

This is the specification of `kernels/decoder_layers`, and what runs on a GPU, where the C++ kernels
were not compiled, or where they do not have what a family needs. Weights that read the same input
are fused: queries, keys and values into one product, gate and up into another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from cadenza.engine.kv_cache import KVCache
from cadenza.engine.models.batch import ModelBatch
from cadenza.engine.models.config import DecoderConfig
from cadenza.engine.models.families import Activation
from cadenza.engine.models.layer import Layer
from cadenza.engine.models.rope import Rope
from cadenza.kernels.gelu_mul import gelu_mul
from cadenza.kernels.kv_write import kv_write
from cadenza.kernels.linear import Weight, linear, pack
from cadenza.kernels.paged_attention import (
    AttentionLayout,
    Workspace,
    paged_attention,
    plan_attention,
)
from cadenza.kernels.rms_norm import add_rms_norm, rms_norm
from cadenza.kernels.rotary_embedding import RotaryTables, rotary_embedding, rotary_tables
from cadenza.kernels.silu_mul import silu_mul

_GATED = {Activation.SILU: silu_mul, Activation.GELU: gelu_mul}


class _Product(NamedTuple):
    weight: Weight
    bias: Tensor | None

    def of(self, x: Tensor) -> Tensor:
        if self.bias is None:
            return linear(x, self.weight)
        return (linear(x, self.weight, torch.float32) + self.bias).to(x.dtype)


class _Layer(NamedTuple):
    """As `Layer`, with its products packed."""

    attention_norm: Tensor
    qkv: _Product
    query_norm: Tensor | None
    key_norm: Tensor | None
    output: _Product
    attention_post_norm: Tensor | None
    mlp_norm: Tensor
    gate_up: _Product
    down: _Product
    mlp_post_norm: Tensor | None


@dataclass(frozen=True, slots=True)
class _Step:
    """What the layers share of a step, by what they may differ in."""

    batch: ModelBatch
    rotary: Mapping[Rope, RotaryTables]
    attention: Mapping[int | None, AttentionLayout]  # by window


class PlainLayers:
    """The layers of one model; the cache is all that a step changes."""

    def __init__(
        self,
        config: DecoderConfig,
        layers: Iterable[Layer],
        pack: Callable[[Tensor], Weight] = pack,
        pack_qkv: Callable[[Tensor], Weight] | None = None,
    ) -> None:
        """layers: at least one, each packed by `pack` before the next is asked for; pack_qkv: packs
        weights of queries, keys and values, None: `pack` does.
        """
        self._config = config
        self._layers = tuple(_packed(layer, pack, pack_qkv or pack) for layer in layers)
        device = self._layers[0].attention_norm.device
        self._tables = {
            rope: rotary_tables(
                rope.frequencies().to(device), config.max_positions, rope.attention_factor
            )
            for rope in set(config.ropes)
        }
        self._workspace = Workspace()

    def forward(self, hidden: Tensor, cache: KVCache, batch: ModelBatch) -> Tensor:
        """Return hidden [tokens, hidden] after the last layer; the cache gets keys and values."""
        step = _Step(
            batch,
            {rope: tables.at(batch.positions) for rope, tables in self._tables.items()},
            {
                window: self._attention(batch, cache, hidden.device, window)
                for window in set(self._config.windows)
            },
        )
        added = None
        for index in range(len(self._layers)):
            hidden, added = self._layer(index, hidden, added, cache.layer(index), step)
        return hidden if added is None else hidden + added

    def _attention(
        self, batch: ModelBatch, cache: KVCache, device: torch.device, window: int | None
    ) -> AttentionLayout:
        return plan_attention(
            batch.num_context,
            batch.num_new,
            batch.block_tables,
            block_size=cache.shape.block_size,
            group=self._config.num_heads // self._config.num_kv_heads,
            head_dim=self._config.head_dim,
            kv_heads=self._config.num_kv_heads,
            device=device,
            workspace=self._workspace,
            window=window,
            softcap=self._config.attention_softcap,
            tiles=batch.tiles,
        )

    def _layer(
        self, index: int, hidden: Tensor, added: Tensor | None, cache: Tensor, step: _Step
    ) -> tuple[Tensor, Tensor]:
        """Return what goes on and what is still to be added to it, as both come in.

        What is added last is added where the sum is normalised.
        """
        layer, gated = self._layers[index], _GATED[self._config.activation]
        eps = self._config.norm_eps
        if added is None:
            normed = rms_norm(hidden, layer.attention_norm, eps)
        else:
            normed, hidden = add_rms_norm(added, hidden, layer.attention_norm, eps)
        qkv = layer.qkv.of(normed)
        attended = layer.output.of(self._attend(index, qkv, cache, step))
        added = self._normed(attended, layer.attention_post_norm)
        normed, hidden = add_rms_norm(added, hidden, layer.mlp_norm, eps)
        added = layer.down.of(gated(layer.gate_up.of(normed)))
        return hidden, self._normed(added, layer.mlp_post_norm)

    def _normed(self, x: Tensor, weight: Tensor | None) -> Tensor:
        """Normalise x [..., width]; a norm that the family lacks changes nothing."""
        return x if weight is None else rms_norm(x, weight, self._config.norm_eps)

    def _attend(self, index: int, qkv: Tensor, cache: Tensor, step: _Step) -> Tensor:
        """[tokens, (heads + 2 kv_heads) * head_dim] -> [tokens, heads * head_dim]."""
        config, layer = self._config, self._layers[index]
        rotary = step.rotary[config.ropes[index]]
        heads = qkv.view(len(qkv), -1, config.head_dim)
        ends = (config.num_heads, config.num_heads + config.num_kv_heads)
        queries, keys, values = heads.tensor_split(ends, dim=1)
        queries = rotary_embedding(self._normed(queries, layer.query_norm), rotary.cos, rotary.sin)
        keys = rotary_embedding(self._normed(keys, layer.key_norm), rotary.cos, rotary.sin)
        kv_write(keys, values, cache, step.batch.blocks, step.batch.offsets)
        attention = step.attention[config.windows[index]]
        return paged_attention(queries, cache, attention, config.scale).flatten(1)


def _packed(
    layer: Layer, pack: Callable[[Tensor], Weight], pack_qkv: Callable[[Tensor], Weight]
) -> _Layer:
    return _Layer(
        attention_norm=layer.attention_norm,
        qkv=_Product(pack_qkv(layer.qkv), layer.qkv_bias),
        query_norm=layer.query_norm,
        key_norm=layer.key_norm,
        output=_Product(pack(layer.output), layer.output_bias),
        attention_post_norm=layer.attention_post_norm,
        mlp_norm=layer.mlp_norm,
        gate_up=_Product(pack(torch.cat((layer.gate, layer.up))), layer.gate_up_bias),
        down=_Product(pack(layer.down), layer.down_bias),
        mlp_post_norm=layer.mlp_post_norm,
    )
