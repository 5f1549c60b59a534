"""The Llama family: grouped-query attention, rotary positions, RMSNorm, SwiGLU.

Weights that read the same input are fused: queries, keys and values into one product, gate and
up into another.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from cadenza.engine.kv_cache import KVCache
from cadenza.engine.models.batch import ModelBatch
from cadenza.engine.models.config import ModelConfig, RopeScaling
from cadenza.engine.models.weights import ProgressCallback, WeightSource
from cadenza.kernels.kv_write import kv_write
from cadenza.kernels.linear import Weight, linear, pack
from cadenza.kernels.paged_attention import paged_attention
from cadenza.kernels.rms_norm import rms_norm
from cadenza.kernels.rotary_embedding import RotaryTables, rotary_embedding, rotary_tables
from cadenza.kernels.silu_mul import silu_mul


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    attention_norm: Tensor  # [hidden]
    qkv: Weight  # [(heads + 2 kv_heads) * head_dim, hidden]
    output: Weight  # [hidden, heads * head_dim]
    mlp_norm: Tensor  # [hidden]
    gate_up: Weight  # [2 * intermediate, hidden]
    down: Weight  # [hidden, intermediate]


class Llama:
    """A loaded model. Stateless: all that a step changes is in the cache."""

    def __init__(
        self,
        config: ModelConfig,
        embedding: Tensor,
        layers: tuple[_Layer, ...],
        norm: Tensor,
        head: Weight,
        rotary: RotaryTables,
    ) -> None:
        self.config = config
        self._embedding = embedding
        self._layers = layers
        self._norm = norm
        self._head = head
        self._rotary = rotary

    @property
    def dtype(self) -> torch.dtype:
        return self._embedding.dtype

    @property
    def device(self) -> torch.device:
        return self._embedding.device

    def forward(self, batch: ModelBatch, cache: KVCache) -> Tensor:
        """Compute all tokens of the batch, write their keys and values; logits of the sampled.

        Returns [sampled, vocab_size], fp32.
        """
        return self.logits(self.hidden(batch, cache).index_select(0, batch.sampled))

    def hidden(self, batch: ModelBatch, cache: KVCache) -> Tensor:
        """Compute all tokens of the batch, write their keys and values.

        Returns what comes out of the last layer, [tokens, hidden].
        """
        hidden = self._embedding.index_select(0, batch.tokens)
        rotary = self._rotary.at(batch.positions)
        for index, layer in enumerate(self._layers):
            hidden = self._layer(layer, hidden, cache.layer(index), batch, rotary)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits after tokens that `hidden` computed, [tokens, vocab_size], fp32."""
        normed = rms_norm(hidden, self._norm, self.config.norm_eps)
        return linear(normed, self._head).float()

    def _layer(
        self, layer: _Layer, hidden: Tensor, cache: Tensor, batch: ModelBatch, rotary: RotaryTables
    ) -> Tensor:
        eps = self.config.norm_eps
        normed = rms_norm(hidden, layer.attention_norm, eps)
        attended = self._attend(linear(normed, layer.qkv), cache, batch, rotary)
        hidden = hidden + linear(attended, layer.output)
        normed = rms_norm(hidden, layer.mlp_norm, eps)
        return hidden + linear(silu_mul(linear(normed, layer.gate_up)), layer.down)

    def _attend(
        self, qkv: Tensor, cache: Tensor, batch: ModelBatch, rotary: RotaryTables
    ) -> Tensor:
        """[tokens, (heads + 2 kv_heads) * head_dim] -> [tokens, heads * head_dim]."""
        config = self.config
        heads = qkv.view(len(qkv), -1, config.head_dim)
        rotated = config.num_heads + config.num_kv_heads
        queries_keys = rotary_embedding(heads[:, :rotated], rotary.cos, rotary.sin)
        queries, keys = queries_keys.tensor_split((config.num_heads,), dim=1)
        kv_write(keys, heads[:, rotated:], cache, batch.blocks, batch.offsets)
        scale = 1.0 / math.sqrt(config.head_dim)
        return paged_attention(queries, cache, batch.attention, scale).flatten(1)


def load_llama(
    config: ModelConfig,
    source: WeightSource,
    dtype: torch.dtype,
    device: torch.device,
    progress: ProgressCallback,
) -> Llama:
    """Build the model from its weights.

    Raises CheckpointError as `WeightSource.get` does.
    """
    loader = _Loader(config, source, dtype, device)
    layers = []
    for index in range(config.num_layers):
        progress("weights", index, config.num_layers)
        layers.append(loader.layer(f"model.layers.{index}"))
    embedding = loader.tensor("model.embed_tokens.weight", config.vocab_size, config.hidden_size)
    head = embedding
    if not config.tied_embeddings:
        head = loader.tensor("lm_head.weight", config.vocab_size, config.hidden_size)
    model = Llama(
        config,
        embedding,
        tuple(layers),
        loader.tensor("model.norm.weight", config.hidden_size),
        pack(head),
        rotary_tables(loader.frequencies(), config.max_positions),
    )
    progress("weights", config.num_layers, config.num_layers)
    return model


class _Loader:
    """Reads, converts and fuses the weights of one model."""

    def __init__(
        self, config: ModelConfig, source: WeightSource, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._config = config
        self._source = source
        self._dtype = dtype
        self._device = device

    def tensor(self, name: str, *shape: int) -> Tensor:
        weight = self._source.get(name, shape).to(device=self._device, dtype=self._dtype)
        return weight.contiguous()

    def layer(self, prefix: str) -> _Layer:
        config = self._config
        hidden, inner = config.hidden_size, config.intermediate_size
        query_rows = config.num_heads * config.head_dim
        key_rows = config.num_kv_heads * config.head_dim
        attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
        return _Layer(
            attention_norm=self.tensor(f"{prefix}.input_layernorm.weight", hidden),
            qkv=self._fused(
                (f"{attention}.q_proj.weight", query_rows, hidden),
                (f"{attention}.k_proj.weight", key_rows, hidden),
                (f"{attention}.v_proj.weight", key_rows, hidden),
            ),
            output=self._fused((f"{attention}.o_proj.weight", hidden, query_rows)),
            mlp_norm=self.tensor(f"{prefix}.post_attention_layernorm.weight", hidden),
            gate_up=self._fused(
                (f"{mlp}.gate_proj.weight", inner, hidden),
                (f"{mlp}.up_proj.weight", inner, hidden),
            ),
            down=self._fused((f"{mlp}.down_proj.weight", hidden, inner)),
        )

    def _fused(self, *parts: tuple[str, int, int]) -> Weight:
        return pack(torch.cat([self.tensor(*part) for part in parts]))

    def frequencies(self) -> Tensor:
        """Return the rotary frequencies [head_dim / 2], radians a token, fp32."""
        config = self._config
        exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
        frequencies = 1.0 / config.rope_theta**exponents
        # GGUF files of scaled models carry a divisor for each frequency
        factors = self._source.find("rope_factors", (config.head_dim // 2,))
        if factors is not None:
            frequencies = frequencies / factors.float()
        if config.rope_scaling is not None:
            frequencies = scaled_frequencies(frequencies, config.rope_scaling)
        return frequencies.to(self._device)


def scaled_frequencies(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    """Stretch rotary frequencies.

    llama3 divides the slow ones by the factor, keeps the fast ones, and blends in between.
    Source: `_compute_llama3_parameters` in transformers/modeling_rope_utils.py.
    """
    if scaling.kind == "linear":
        return frequencies / scaling.factor
    turns = scaling.original_max_positions * frequencies / (2.0 * math.pi)
    span = scaling.high_freq_factor - scaling.low_freq_factor
    blend = ((turns - scaling.low_freq_factor) / span).clamp(0.0, 1.0)
    return (1.0 - blend) * frequencies / scaling.factor + blend * frequencies
