"""What a model is, from a Hugging Face folder's config.json and generation_config.json.

What these leave out is as transformers' LlamaConfig has it, whose files they are. It is not asked
itself, because importing it takes longer than loading a small model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cadenza.checkpoints import CheckpointError, ModelFolder
from cadenza.engine.models.config import ModelConfig, RopeScaling, checked

_KINDS = ("llama",)  # of model_type
_END = 2  # what ends a text where nothing says what does


def config_from_folder(folder: ModelFolder) -> ModelConfig:
    """Read a folder's configuration.

    Raises CheckpointError when a field is missing or wrong, or a feature is not supported.
    """
    fields = _Fields(str(folder.path), folder.config)
    _refuse_features(fields)
    hidden_size, num_heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    if folder.config.get("head_dim") is None and hidden_size % num_heads:
        raise fields.error(f"hidden_size {hidden_size} does not divide into {num_heads} heads")
    rope = _rope(fields)
    return checked(
        fields.where,
        ModelConfig(
            architecture=folder_architecture(folder),
            vocab_size=fields.count("vocab_size"),
            hidden_size=hidden_size,
            intermediate_size=fields.count("intermediate_size"),
            num_layers=fields.count("num_hidden_layers"),
            num_heads=num_heads,
            num_kv_heads=fields.count("num_key_value_heads", num_heads),
            head_dim=fields.count("head_dim", hidden_size // num_heads),
            norm_eps=fields.real("rms_norm_eps", 1e-6),
            rope_theta=rope.real("rope_theta", fields.real("rope_theta", 10000.0)),
            rope_scaling=_rope_scaling(fields, rope),
            max_positions=fields.count("max_position_embeddings", 2048),
            tied_embeddings=fields.flag("tie_word_embeddings"),
            eos_token_ids=_eos(folder),
        ),
    )


def folder_architecture(folder: ModelFolder) -> str:
    """Return the name of the transformers class that a folder's config.json asks for."""
    names = folder.config.get("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise CheckpointError(f"{folder.path}: config.json names no architecture.")
    return names[0]


@dataclass(frozen=True, slots=True)
class _Fields:
    """Fields of config.json, or of an object in it; null is as good as missing."""

    where: str
    values: dict[str, Any]

    def count(self, name: str, default: int | None = None) -> int:
        value = self._found(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self.error(f"{name} is {value!r}, not a positive whole number")
        return value

    def real(self, name: str, default: float | None = None) -> float:
        value = self._found(name, default)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self.error(f"{name} is {value!r}, not a number")
        return float(value)

    def flag(self, name: str) -> bool:
        value = self._found(name, False)
        if not isinstance(value, bool):
            raise self.error(f"{name} is {value!r}, not true or false")
        return value

    def error(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self.where}: config.json is not usable: {what}.")

    def _found(self, name: str, default: object) -> Any:
        value = self.values.get(name)
        value = default if value is None else value
        if value is None:
            raise CheckpointError(f"{self.where}: config.json has no {name!r}.")
        return value


def _refuse_features(fields: _Fields) -> None:
    where, values = fields.where, fields.values
    if (kind := values.get("model_type")) not in _KINDS:
        raise fields.error(f"model_type is {kind!r}, not {' or '.join(_KINDS)}")
    for bias in ("attention_bias", "mlp_bias"):
        if fields.flag(bias):
            raise CheckpointError(f"{where}: models with {bias} are not supported.")
    if (activation := values.get("hidden_act", "silu")) != "silu":
        raise CheckpointError(f"{where}: the activation {activation!r} is not supported.")
    if values.get("quantization_config"):
        raise CheckpointError(f"{where}: quantised safetensors are not supported.")


def _rope(fields: _Fields) -> _Fields:
    """What is said of rotary positions: rope_parameters, or in older files rope_scaling."""
    stored = fields.values.get("rope_scaling") or fields.values.get("rope_parameters") or {}
    if not isinstance(stored, dict):
        raise fields.error(f"its rotary parameters are {stored!r}, not an object")
    rope = _Fields(fields.where, stored)
    share = rope.real("partial_rotary_factor", fields.real("partial_rotary_factor", 1.0))
    if share != 1.0:
        raise CheckpointError(f"{fields.where}: rotating a part of a head is not supported.")
    return rope


def _rope_scaling(fields: _Fields, rope: _Fields) -> RopeScaling | None:
    kind = rope.values.get("rope_type", rope.values.get("type", "default"))
    if kind == "default":
        return None
    if kind == "linear":
        return RopeScaling(kind=kind, factor=rope.real("factor"))
    if kind == "llama3":
        longest = fields.count("max_position_embeddings", 2048)
        return RopeScaling(
            kind=kind,
            factor=rope.real("factor"),
            low_freq_factor=rope.real("low_freq_factor"),
            high_freq_factor=rope.real("high_freq_factor"),
            original_max_positions=rope.count("original_max_position_embeddings", longest),
        )
    raise CheckpointError(f"{fields.where}: rotary scaling of the type {kind!r} is not supported.")


def _eos(folder: ModelFolder) -> tuple[int, ...]:
    """Return the end tokens of generation_config.json, else those of config.json."""
    name, found = "generation_config.json", folder.generation.get("eos_token_id")
    if found is None:
        name, found = "config.json", folder.config.get("eos_token_id", _END)
    if found is None:
        return ()
    ids = found if isinstance(found, list) else [found]
    if not all(isinstance(token, int) and not isinstance(token, bool) for token in ids):
        raise CheckpointError(
            f"{folder.path}: {name} is not usable: eos_token_id is {found!r}, no token ids."
        )
    return tuple(ids)
