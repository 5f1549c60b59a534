"""A model of one of our families: embedding, layers, norm and head."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial

import torch
from torch import Tensor

from cadenza.checkpoints import CheckpointError
from cadenza.engine.heap import trim
from cadenza.engine.kv_cache import KVCache
from cadenza.engine.models.batch import ModelBatch
from cadenza.engine.models.config import DecoderConfig
from cadenza.engine.models.families import Activation
from cadenza.engine.models.layer import Layer
from cadenza.engine.models.loader import Loader
from cadenza.engine.models.plain_layers import PlainLayers
from cadenza.engine.models.weights import EMBEDDING, HEAD, ProgressCallback, Weights
from cadenza.kernels.decoder_layers import DecoderShape, LayerWeights, NativeLayers, is_supported
from cadenza.kernels.int8_linear import TwiceQuantised, pack_int8
from cadenza.kernels.linear import Weight, linear, pack, pack_coded
from cadenza.kernels.rms_norm import rms_norm
from cadenza.kernels.rotary_embedding import rotary_tables
from cadenza.kernels.soft_cap import soft_capped_
from cadenza.kernels.triton_backend import uses_triton

_CODES = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}


class Decoder:
    """A loaded model. Stateless: all that a step changes is in the cache."""

    def __init__(
        self,
        config: DecoderConfig,
        embedding: Tensor,
        layers: NativeLayers | PlainLayers,
        norm: Tensor,
        head: Weight,
    ) -> None:
        self.config = config
        self._embedding = embedding
        # rounded as transformers does, which multiplies in the model's dtype
        self._embedding_scale = torch.tensor(config.embedding_scale, dtype=embedding.dtype)
        self._layers = layers
        self._norm = norm
        self._head = head

    @property
    def dtype(self) -> torch.dtype:
        return self._embedding.dtype

    @property
    def device(self) -> torch.device:
        return self._embedding.device

    @property
    def layers(self) -> str:
        """What computes the layers: native or plain."""
        return "plain" if isinstance(self._layers, PlainLayers) else "native"

    def hidden(self, batch: ModelBatch, cache: KVCache) -> Tensor:
        """Compute all tokens of the batch, write their keys and values.

        Returns what comes out of the last layer, [tokens, hidden]: of the model's dtype, or fp32.
        """
        hidden = self._embedding.index_select(0, batch.tokens)
        if self.config.family.scales_embeddings:
            hidden.mul_(self._embedding_scale)
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
        normed = rms_norm(hidden, self._norm, self.config.norm_eps)
        logits = linear(normed.to(self.dtype), self._head, torch.float32)
        if self.config.logits_softcap is None:
            return logits
        return soft_capped_(logits, self.config.logits_softcap)


def load_decoder(
    config: DecoderConfig,
    source: Weights,
    dtype: torch.dtype,
    device: torch.device,
    progress: ProgressCallback,
    *,
    quantization: str = "none",
    deterministic: bool = False,
) -> Decoder:
    """Build the model from its weights.

    quantization: of the products of layers, "none", "int8" or, where Triton computes, "fp8";
    deterministic: no row's bits depend on other rows.

    Raises CheckpointError as `Weights.get` does, and for weights that cannot be quantised.
    """
    loader = Loader(config, source, dtype, device)
    packer = _packer(quantization, device, deterministic=deterministic)
    read = _layers(config, loader, progress)
    layers: NativeLayers | PlainLayers
    try:
        if has_native_layers(config, dtype, device):
            layers = _native_layers(config, read, int8=quantization == "int8")
        else:
            # as the native layers do, and Triton has no need to: it quantises no inputs
            packer_qkv = TwiceQuantised if packer is pack_int8 else packer
            layers = PlainLayers(config, read, packer, packer_qkv)
    except ValueError as error:
        raise CheckpointError(f"{source.where}: {error}.") from error
    loader.check_all_are_read()
    embedding = loader.tensor(EMBEDDING, config.vocab_size, config.hidden_size)
    head = embedding
    if not config.tied_embeddings:
        head = loader.tensor(HEAD, config.vocab_size, config.hidden_size)
    norm = loader.norm("model.norm")
    model = Decoder(config, embedding, layers, norm, pack(head, invariant=deterministic))
    progress("weights", config.num_layers, config.num_layers)
    return model


def _packer(
    quantization: str, device: torch.device, *, deterministic: bool
) -> Callable[[Tensor], Weight]:
    """Return what packs the products of layers that are computed operation after operation."""
    if quantization == "none":
        return partial(pack, invariant=deterministic)
    if uses_triton(device):
        return partial(pack_coded, code=_CODES[quantization], invariant=deterministic)
    return pack_int8


def _layers(config: DecoderConfig, loader: Loader, progress: ProgressCallback) -> Iterator[Layer]:
    """Read a layer when it is asked for: never are all of them in memory beside what is packed."""
    for index in range(config.num_layers):
        progress("weights", index, config.num_layers)
        yield loader.layer(index)
        trim()


def has_native_layers(config: DecoderConfig, dtype: torch.dtype, device: torch.device) -> bool:
    """Tell whether the native layers compute what `config` describes."""
    family = config.family
    has_more = (
        config.activation is not Activation.SILU
        or config.has_output_bias
        or config.has_mlp_bias
        or family.has_post_norms
        or config.attention_softcap is not None
        or config.scale != 1.0 / math.sqrt(config.head_dim)
        or len(set(config.ropes)) > 1
        or config.ropes[0].rotated != config.head_dim
    )
    is_native = not uses_triton(device) and is_supported(_shape(config), dtype, device)
    return is_native and not has_more


def _shape(config: DecoderConfig) -> DecoderShape:
    return DecoderShape(
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        norm_eps=config.norm_eps,
    )


def _native_layers(config: DecoderConfig, layers: Iterable[Layer], *, int8: bool) -> NativeLayers:
    rope = config.ropes[0]
    return NativeLayers(
        _shape(config),
        map(_native, layers, config.windows),
        rotary_tables(rope.frequencies(), config.max_positions, rope.attention_factor),
        int8=int8,
    )


def _native(layer: Layer, window: int | None) -> LayerWeights:
    return LayerWeights(
        attention_norm=layer.attention_norm,
        qkv=layer.qkv,
        output=layer.output,
        mlp_norm=layer.mlp_norm,
        gate=layer.gate,
        up=layer.up,
        down=layer.down,
        qkv_bias=layer.qkv_bias,
        query_norm=layer.query_norm,
        key_norm=layer.key_norm,
        window=window,
    )
