"""What a model is, from the config.json of a Hugging Face folder, as transformers reads it."""

from __future__ import annotations

import math
from typing import Any

from cadenza.checkpoints import CheckpointError, ModelFolder
from cadenza.engine.models.config import (
    DecoderConfig,
    check_config,
    is_positive_number,
    visible_windows,
)
from cadenza.engine.models.families import Activation, Family, Windows
from cadenza.engine.models.generation import folder_defaults, folder_eos
from cadenza.engine.models.rope import (
    Linear,
    Llama3,
    PerFrequency,
    Rope,
    Scaling,
    Yarn,
    longrope_attention_factor,
    yarn_attention_factor,
)

_SLIDING = "sliding_attention"
_LAYER_TYPES = ("full_attention", _SLIDING)


def folder_architecture(folder: ModelFolder) -> str:
    """Return the name of the transformers class that a folder's config.json asks for."""
    names = folder.config.get("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise CheckpointError(f"{folder.path}: config.json names no architecture.")
    return names[0]


def transformers_config(folder: ModelFolder, architecture: str) -> Any:
    """Return config.json as transformers' AutoConfig.

    Raises CheckpointError when that refuses, or reads it as another architecture's.
    """
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    try:
        config = AutoConfig.from_pretrained(folder.path, trust_remote_code=False)
    # transformers raises many kinds for a bad config.json; all mean the same to the operator
    except Exception as error:
        raise CheckpointError(
            f"{folder.path}: config.json is not usable: {one_line(error)}"
        ) from error
    if getattr(config, "quantization_config", None):
        raise CheckpointError(f"{folder.path}: quantised safetensors are not supported.")
    read_as = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(config.model_type)
    if architecture in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values() and read_as != architecture:
        raise CheckpointError(
            f"{folder.path}: config.json names {architecture}, but its model_type is"
            f" {config.model_type!r}, another's."
        )
    return config


def config_from_folder(
    folder: ModelFolder, family: Family, max_model_len: int | None = None
) -> DecoderConfig:
    """Describe a folder of one of our families.

    max_model_len: tokens that are asked for; None: what the model was made for. Raises
    CheckpointError when config.json is not usable, or a feature is not supported.
    """
    where, config = str(folder.path), transformers_config(folder, family.architecture)
    try:
        return check_config(where, _described(folder, family, config, max_model_len))
    except AttributeError as error:
        raise CheckpointError(f"{where}: config.json has no {error.name!r}.") from error
    except KeyError as error:
        raise CheckpointError(f"{where}: config.json has no {error.args[0]!r}.") from error


def _described(
    folder: ModelFolder, family: Family, config: Any, max_model_len: int | None
) -> DecoderConfig:
    where = str(folder.path)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    attention_bias = bool(getattr(config, "attention_bias", False))
    max_positions = _max_positions(config, max_model_len)
    if getattr(config, "use_bidirectional_attention", False):
        raise CheckpointError(f"{where}: attention to later tokens is not supported.")
    return DecoderConfig(
        architecture=family.architecture,
        family=family,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_layers=config.num_hidden_layers,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=head_dim,
        norm_eps=config.rms_norm_eps,
        activation=_activation(where, config),
        has_qkv_bias=family.has_qkv_bias or attention_bias,
        has_output_bias=attention_bias,
        has_mlp_bias=bool(getattr(config, "mlp_bias", False)),
        scale=_scale(where, config, head_dim),
        attention_softcap=config.attn_logit_softcapping if family.has_softcaps else None,
        logits_softcap=getattr(config, "final_logit_softcapping", None),
        ropes=_ropes(where, config, head_dim, max_positions),
        windows=visible_windows(_windows(where, family, config), max_positions),
        max_positions=max_positions,
        tied_embeddings=config.tie_word_embeddings,
        eos_token_ids=folder_eos(where, folder.generation, config.eos_token_id),
        sampling=folder_defaults(where, folder.generation),
    )


def one_line(error: Exception) -> str:
    """Return the first paragraph of an error's text, on one line."""
    return " ".join(str(error).partition("\n\n")[0].split())


def _activation(where: str, config: Any) -> Activation:
    name = getattr(config, "hidden_activation", None) or getattr(config, "hidden_act", "silu")
    try:
        return Activation(name)
    except ValueError as error:
        raise CheckpointError(f"{where}: the activation {name!r} is not supported.") from error


def _scale(where: str, config: Any, head_dim: int) -> float:
    width = getattr(config, "query_pre_attn_scalar", None) or head_dim
    return 1.0 / math.sqrt(_positive(where, "query_pre_attn_scalar", width))


def _positive(where: str, name: str, value: Any) -> float:
    if not is_positive_number(value):
        raise CheckpointError(f"{where}: {name} is {value!r}, not a positive number.")
    return float(value)


def _windows(where: str, family: Family, config: Any) -> tuple[int | None, ...]:
    layers: int = config.num_hidden_layers
    if family.windows is Windows.NONE:
        return (None,) * layers
    if family.windows is Windows.ALL:
        return (config.sliding_window,) * layers
    for kind in config.layer_types:
        if kind not in _LAYER_TYPES:
            raise CheckpointError(f"{where}: layers of the type {kind!r} are not supported.")
    return tuple(config.sliding_window if kind == _SLIDING else None for kind in config.layer_types)


def _max_positions(config: Any, max_model_len: int | None) -> int:
    """Return the context that one table of frequencies serves.

    LongRoPE has frequencies for contexts up to the original one, and others for all that is
    longer; keys in the cache cannot change theirs. The short ones it is, unless more was asked for.
    """
    parameters = config.rope_parameters or {}
    trained: int = config.max_position_embeddings
    if parameters.get("rope_type") != "longrope":
        return trained
    original: int = parameters["original_max_position_embeddings"]
    return trained if (max_model_len or 0) > original else min(original, trained)


def _ropes(where: str, config: Any, head_dim: int, max_positions: int) -> tuple[Rope, ...]:
    parameters: dict[str, Any] = config.rope_parameters or {}
    if any(kind in parameters for kind in _LAYER_TYPES):
        by_type = {
            kind: _rope(where, config, parameters[kind], head_dim, max_positions)
            for kind in set(config.layer_types)
        }
        return tuple(by_type[kind] for kind in config.layer_types)
    num_layers: int = config.num_hidden_layers
    return (_rope(where, config, parameters, head_dim, max_positions),) * num_layers


def _rope(
    where: str, config: Any, parameters: dict[str, Any], head_dim: int, max_positions: int
) -> Rope:
    scaling = _Scaling(where, config, parameters)
    share = scaling.number("partial_rotary_factor", 1.0)
    return Rope(
        theta=parameters["rope_theta"],
        rotated=int(head_dim * share),
        scaling=scaling.read(max_positions),
    )


class _Scaling:
    """Rotary scaling, from the parameters that config.json has for it."""

    def __init__(self, where: str, config: Any, parameters: dict[str, Any]) -> None:
        self._where = where
        self._config = config
        self._parameters = parameters

    def number(self, name: str, default: float | None = None) -> float:
        """Return a positive number. Raises KeyError where it is missing without a default."""
        value = self._parameters.get(name)
        if value is None and default is not None:
            return default
        return _positive(self._where, f"{name} of rotary positions", self._parameters[name])

    def read(self, max_positions: int) -> Scaling | None:
        match self._parameters.get("rope_type", "default"):
            # dynamic scaling begins where the context that we serve ends
            case "default" | "dynamic":
                return None
            case "linear":
                return Linear(self.number("factor"))
            case "llama3":
                return self._llama3()
            case "yarn":
                return self._yarn()
            case "longrope":
                return self._longrope(max_positions)
            case kind:
                raise CheckpointError(
                    f"{self._where}: rotary scaling of the type {kind!r} is not supported."
                )

    def _llama3(self) -> Llama3:
        low, high = self.number("low_freq_factor"), self.number("high_freq_factor")
        if low >= high:
            raise CheckpointError(
                f"{self._where}: low_freq_factor of rotary positions is {low}, not under"
                f" high_freq_factor, {high}."
            )
        return Llama3(
            factor=self.number("factor"),
            low_freq_factor=low,
            high_freq_factor=high,
            original_max_positions=self.number("original_max_position_embeddings"),
        )

    def _yarn(self) -> Yarn:
        factor = self.number("factor")
        over, under = self._parameters.get("mscale"), self._parameters.get("mscale_all_dim")
        usual = yarn_attention_factor(factor)
        if over and under:
            over, under = self.number("mscale"), self.number("mscale_all_dim")
            usual = yarn_attention_factor(factor, over) / yarn_attention_factor(factor, under)
        return Yarn(
            factor=factor,
            original_max_positions=self.number("original_max_position_embeddings"),
            beta_fast=self.number("beta_fast", 32.0),
            beta_slow=self.number("beta_slow", 1.0),
            truncate=bool(self._parameters.get("truncate", True)),
            attention_factor=self.number("attention_factor", usual),
        )

    def _longrope(self, max_positions: int) -> PerFrequency:
        original = self.number("original_max_position_embeddings")
        factor = self.number("factor", self._config.max_position_embeddings / original)
        name = "long_factor" if max_positions > original else "short_factor"
        factors = self._parameters[name]
        return PerFrequency(
            factors=tuple(_positive(self._where, name, one) for one in factors),
            attention_factor=self.number(
                "attention_factor", longrope_attention_factor(factor, original)
            ),
        )
