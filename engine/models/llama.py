"""The Llama family: grouped-query attention, rotary positions, RMSNorm, SwiGLU."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from cadenza.engine.kv_cache import KVCache
from cadenza.engine.models.batch import ModelBatch
from cadenza.engine.models.config import ModelConfig, RopeScaling
from cadenza.engine.models.plain_layers import PlainLayers
from cadenza.engine.models.weights import ProgressCallback, WeightSource
from cadenza.kernels.decoder_layers import DecoderShape, LayerWeights, NativeLayers, is_supported
from cadenza.kernels.linear import Weight, linear, pack
from cadenza.kernels.rms_norm import rms_norm
from cadenza.kernels.rotary_embedding import RotaryTables, rotary_tables


class Llama:
    """A loaded model. Stateless: all that a step changes is in the cache."""

    def __init__(
        self,
        config: ModelConfig,
        embedding: Tensor,
        layers: NativeLayers | PlainLayers,
        norm: Tensor,
        head: Weight,
    ) -> None:
        self.config = config
        self._embedding = embedding
        self._layers = layers
        self._norm = norm
        self._head = head

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

        Returns what comes out of the last layer, [tokens, hidden]: of the model's dtype, or fp32.
        """
        hidden = self._embedding.index_select(0, batch.tokens)
        if isinstance(self._layers, PlainLayers):
            return self._layers.forward(hidden, cache, batch)
        return self._layers.forward(
            hidden.float(),
            cache.blocks,
            positions=batch.positions,
            blocks=batch.blocks,
            offsets=batch.offsets,
            num_context=batch.num_context,
            num_new=batch.num_new,
            block_tables=batch.block_tables,
        )

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits after tokens that `hidden` computed, [tokens, vocab_size], fp32."""
        normed = rms_norm(hidden, self._norm.to(hidden.dtype), self.config.norm_eps)
        return linear(normed.to(self.dtype), self._head, torch.float32)


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
    rotary = rotary_tables(loader.frequencies(), config.max_positions)
    model = Llama(
        config,
        embedding,
        _layers(config, layers, rotary, dtype, device),
        loader.tensor("model.norm.weight", config.hidden_size),
        pack(head),
    )
    progress("weights", config.num_layers, config.num_layers)
    return model


def _layers(
    config: ModelConfig,
    layers: list[LayerWeights],
    rotary: RotaryTables,
    dtype: torch.dtype,
    device: torch.device,
) -> NativeLayers | PlainLayers:
    shape = DecoderShape(
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        norm_eps=config.norm_eps,
    )
    kind = NativeLayers if is_supported(shape, dtype, device) else PlainLayers
    return kind(shape, layers, rotary)


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

    def layer(self, prefix: str) -> LayerWeights:
        config = self._config
        hidden, inner = config.hidden_size, config.intermediate_size
        query_rows = config.num_heads * config.head_dim
        key_rows = config.num_kv_heads * config.head_dim
        attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
        return LayerWeights(
            attention_norm=self.tensor(f"{prefix}.input_layernorm.weight", hidden),
            qkv=torch.cat(
                (
                    self.tensor(f"{attention}.q_proj.weight", query_rows, hidden),
                    self.tensor(f"{attention}.k_proj.weight", key_rows, hidden),
                    self.tensor(f"{attention}.v_proj.weight", key_rows, hidden),
                )
            ),
            output=self.tensor(f"{attention}.o_proj.weight", hidden, query_rows),
            mlp_norm=self.tensor(f"{prefix}.post_attention_layernorm.weight", hidden),
            gate=self.tensor(f"{mlp}.gate_proj.weight", inner, hidden),
            up=self.tensor(f"{mlp}.up_proj.weight", inner, hidden),
            down=self.tensor(f"{mlp}.down_proj.weight", hidden, inner),
        )

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
