"""What a model is, from the metadata of a GGUF file. Keys: gguf-py's `constants.py`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from cadenza.checkpoints import CheckpointError, GgufFile
from cadenza.engine.models.config import (
    DecoderConfig,
    check_config,
    is_positive_number,
    visible_windows,
)
from cadenza.engine.models.families import BY_GGUF, Windows
from cadenza.engine.models.generation import gguf_defaults, gguf_eos
from cadenza.engine.models.rope import (
    Linear,
    PerFrequency,
    Rope,
    Scaling,
    Yarn,
    longrope_attention_factor,
    yarn_attention_factor,
)

# Layers of the models whose scores are scaled by hidden size / heads, which no key says
_LAYERS_SCALED_BY_HIDDEN = {"gemma2": 46, "gemma3": 62}
_SOFTCAPS = {"gemma2": (50.0, 30.0)}  # of scores and logits, where no key says otherwise
_THETA_OF_WINDOWS = 10000.0  # of Gemma 3, where no key says otherwise


def config_from_gguf(file: GgufFile, max_model_len: int | None = None) -> DecoderConfig:
    """Read GGUF metadata.

    max_model_len: tokens that are asked for; None: what the model was made for. Raises
    CheckpointError when a key is missing or a feature is not supported.
    """
    where, metadata = str(file.path), file.metadata
    name = metadata.get("general.architecture")
    if not isinstance(name, str) or name not in BY_GGUF:
        raise CheckpointError(
            f"{where}: the architecture {name!r} is not supported;"
            f" supported in GGUF files: {', '.join(BY_GGUF)}."
        )
    return check_config(where, _Description(file, name, max_model_len).config())


@dataclass(frozen=True, slots=True)
class _Numbers:
    """Numbers among GGUF metadata, under their architecture's prefix."""

    where: str
    prefix: str
    metadata: dict[str, Any]

    def get(self, key: str) -> Any:
        return self.metadata.get(f"{self.prefix}.{key}")

    def count(self, key: str, default: int | None = None) -> int:
        value = self.get(key)
        value = default if value is None else value
        if not isinstance(value, int) or value < 1:
            raise self._error(key)
        return value

    def real(self, key: str, default: float | None = None) -> float:
        value = self.get(key)
        value = default if value is None else value
        if not is_positive_number(value):
            raise self._error(key)
        return float(value)

    def _error(self, key: str) -> CheckpointError:
        return CheckpointError(f"{self.where}: the metadata has no usable {self.prefix}.{key}.")


class _Description:
    """A file's metadata in the words of `DecoderConfig`."""

    def __init__(self, file: GgufFile, name: str, max_model_len: int | None) -> None:
        self._file = file
        self._name = name
        self._family = BY_GGUF[name]
        self._numbers = numbers = _Numbers(str(file.path), name, file.metadata)
        self._num_layers = numbers.count("block_count")
        self._num_heads = numbers.count("attention.head_count")
        self._hidden_size = numbers.count("embedding_length")
        self._head_dim = numbers.count("attention.key_length", self._hidden_size // self._num_heads)
        self._trained = numbers.count("context_length")
        self._original = numbers.count("rope.scaling.original_context_length", self._trained)
        is_short = "rope_factors_short.weight" in file.tensors and (
            (max_model_len or 0) <= self._original
        )
        self._max_positions = self._original if is_short else self._trained

    def config(self) -> DecoderConfig:
        numbers, file, family = self._numbers, self._file, self._family
        if numbers.get("expert_count"):
            raise CheckpointError(f"{file.path}: mixture-of-experts models are not supported.")
        scores, logits = _SOFTCAPS.get(self._name, (None, None))
        return DecoderConfig(
            architecture=family.architecture,
            family=family,
            vocab_size=numbers.count("vocab_size", _num_tokens(file)),
            hidden_size=self._hidden_size,
            intermediate_size=numbers.count("feed_forward_length"),
            num_layers=self._num_layers,
            num_heads=self._num_heads,
            num_kv_heads=numbers.count("attention.head_count_kv", self._num_heads),
            head_dim=self._head_dim,
            norm_eps=numbers.real("attention.layer_norm_rms_epsilon"),
            activation=family.activation,
            has_qkv_bias=family.has_qkv_bias
            or self._has("attn_q.bias")
            or self._has("attn_qkv.bias"),
            has_output_bias=self._has("attn_output.bias"),
            has_mlp_bias=self._has("ffn_down.bias"),
            scale=self._scale(),
            attention_softcap=self._softcap("attn_logit_softcapping", scores),
            logits_softcap=self._softcap("final_logit_softcapping", logits),
            ropes=self._ropes(),
            windows=visible_windows(self._windows(), self._max_positions),
            max_positions=self._max_positions,
            tied_embeddings="output.weight" not in file.tensors,
            eos_token_ids=gguf_eos(file.metadata),
            sampling=gguf_defaults(numbers.where, file.metadata),
        )

    def _has(self, name: str) -> bool:
        return f"blk.0.{name}" in self._file.tensors

    def _scale(self) -> float:
        by_hidden = _LAYERS_SCALED_BY_HIDDEN.get(self._name) == self._num_layers
        width = self._hidden_size / self._num_heads if by_hidden else self._head_dim
        return 1.0 / math.sqrt(width)

    def _softcap(self, key: str, default: float | None) -> float | None:
        if self._numbers.get(key) is None and default is None:
            return None
        return self._numbers.real(key, default)

    def _windows(self) -> tuple[int | None, ...]:
        if self._numbers.get("attention.sliding_window") in (None, 0):
            return (None,) * self._num_layers
        window = self._numbers.count("attention.sliding_window")
        if self._family.windows is Windows.ALL:
            return (window,) * self._num_layers
        return tuple(window if self._is_windowed(layer) else None for layer in self._layers)

    @property
    def _layers(self) -> range:
        return range(self._num_layers)

    def _is_windowed(self, layer: int) -> bool:
        pattern = self._numbers.get("attention.sliding_window_pattern")
        if isinstance(pattern, np.ndarray) and len(pattern) == self._num_layers:
            return bool(pattern[layer])
        period = self._numbers.count("attention.sliding_window_pattern", self._family.window_period)
        return (layer + 1) % period != 0

    def _ropes(self) -> tuple[Rope, ...]:
        numbers = self._numbers
        rotated = numbers.count("rope.dimension_count", self._head_dim)
        if self._family.pairs_are_neighbours and rotated != self._head_dim:
            raise CheckpointError(
                f"{numbers.where}: rotating {rotated} of {self._head_dim} dimensions is not"
                " supported."
            )
        rope = Rope(
            theta=numbers.real("rope.freq_base", 10000.0), rotated=rotated, scaling=self._scaling()
        )
        if self._name != "gemma3":
            return (rope,) * self._num_layers
        theta = numbers.real("rope.freq_base_swa", _THETA_OF_WINDOWS)
        windowed = Rope(theta=theta, rotated=rotated)
        return tuple(windowed if self._is_windowed(layer) else rope for layer in self._layers)

    def _scaling(self) -> Scaling | None:
        for name in ("rope_freqs", self._longrope()):
            if f"{name}.weight" in self._file.tensors:
                return self._per_frequency(name)
        numbers = self._numbers
        kind = numbers.get("rope.scaling.type") or "none"
        if kind == "none":
            return None
        factor = numbers.real("rope.scaling.factor", 1.0)
        if kind == "linear":
            return Linear(factor)
        if kind == "yarn":
            return Yarn(
                factor=factor,
                original_max_positions=self._original,
                beta_fast=numbers.real("rope.scaling.yarn_beta_fast", 32.0),
                beta_slow=numbers.real("rope.scaling.yarn_beta_slow", 1.0),
                attention_factor=yarn_attention_factor(factor),
            )
        raise CheckpointError(
            f"{numbers.where}: rotary scaling of the type {kind!r} is not supported."
        )

    def _longrope(self) -> str:
        is_long = self._max_positions > self._original
        return "rope_factors_long" if is_long else "rope_factors_short"

    def _per_frequency(self, name: str) -> PerFrequency:
        where, info = self._file.path, self._file.tensors[f"{name}.weight"]
        if info.ggml_type != 0 or math.prod(info.shape) * 2 != self._numbers.count(
            "rope.dimension_count", self._head_dim
        ):
            raise CheckpointError(
                f"{where}: {info.name!r} is not a factor in F32 for each rotary frequency."
            )
        factors = np.asarray(self._file.data(info.name)).view(np.float32).tolist()
        attention_factor = 1.0
        if name != "rope_freqs":
            attention_factor = self._numbers.real(
                "rope.scaling.attn_factor",
                longrope_attention_factor(self._trained / self._original, self._original),
            )
        return PerFrequency(factors=tuple(factors), attention_factor=attention_factor)


def _num_tokens(file: GgufFile) -> int | None:
    embedding = file.tensors.get("token_embd.weight")
    return embedding.shape[0] if embedding is not None and embedding.shape else None
