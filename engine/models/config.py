"""What a model is: sizes and constants, from a folder's config.json or from GGUF metadata."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from cadenza.checkpoints import CheckpointError, GgufFile, ModelFolder

_GGUF_ARCHITECTURES = {"llama": "LlamaForCausalLM"}
_MOST_POSITIONS = 1 << 22  # rotary tables of 1 GiB for a head of 64
_END_OF_TURN = ("<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>")


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """How rotary frequencies are stretched for long contexts."""

    kind: str  # "linear" or "llama3"
    factor: float
    low_freq_factor: float = 1.0  # llama3 only, as the two below
    high_freq_factor: float = 4.0
    original_max_positions: int = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A decoder-only transformer. Lengths are in tokens."""

    architecture: str  # transformers' class name
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    max_positions: int
    tied_embeddings: bool
    eos_token_ids: tuple[int, ...]


def config_from_folder(folder: ModelFolder) -> ModelConfig:
    """Read a Hugging Face folder through transformers' AutoConfig.

    Raises CheckpointError when transformers refuses it, or a feature is not supported.
    """
    from transformers import AutoConfig

    where = str(folder.path)
    try:
        config = AutoConfig.from_pretrained(folder.path, trust_remote_code=False)
    # transformers raises many kinds for a bad config.json; all mean the same to the operator
    except Exception as error:
        raise CheckpointError(f"{where}: config.json is not usable: {_reason(error)}") from error
    _refuse_features(where, config)
    try:
        return _checked(
            where,
            ModelConfig(
                architecture=folder_architecture(folder),
                vocab_size=config.vocab_size,
                hidden_size=config.hidden_size,
                intermediate_size=config.intermediate_size,
                num_layers=config.num_hidden_layers,
                num_heads=config.num_attention_heads,
                num_kv_heads=config.num_key_value_heads,
                head_dim=getattr(config, "head_dim", None)
                or config.hidden_size // config.num_attention_heads,
                norm_eps=config.rms_norm_eps,
                rope_theta=_rope(config)["rope_theta"],
                rope_scaling=_rope_scaling(where, _rope(config)),
                max_positions=config.max_position_embeddings,
                tied_embeddings=config.tie_word_embeddings,
                eos_token_ids=_folder_eos(folder, config),
            ),
        )
    except AttributeError as error:
        raise CheckpointError(f"{where}: config.json has no {error.name!r}.") from error
    except KeyError as error:
        raise CheckpointError(f"{where}: config.json has no {error.args[0]!r}.") from error


def folder_architecture(folder: ModelFolder) -> str:
    """Return the name of the transformers class that a folder's config.json asks for."""
    names = folder.config.get("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise CheckpointError(f"{folder.path}: config.json names no architecture.")
    return names[0]


def _reason(error: Exception) -> str:
    """Return the first paragraph of an error's text, on one line."""
    return " ".join(str(error).partition("\n\n")[0].split())


def _refuse_features(where: str, config: Any) -> None:
    for bias in ("attention_bias", "mlp_bias"):
        if getattr(config, bias, False):
            raise CheckpointError(f"{where}: models with {bias} are not supported.")
    activation = getattr(config, "hidden_act", "silu")
    if activation != "silu":
        raise CheckpointError(f"{where}: the activation {activation!r} is not supported.")
    if getattr(config, "quantization_config", None):
        raise CheckpointError(f"{where}: quantised safetensors are not supported.")


def _rope(config: Any) -> dict[str, Any]:
    parameters: dict[str, Any] = dict(config.rope_parameters or {})
    return parameters


def _rope_scaling(where: str, parameters: dict[str, Any]) -> RopeScaling | None:
    kind = parameters.get("rope_type", "default")
    if kind == "default":
        return None
    if kind == "linear":
        return RopeScaling(kind=kind, factor=parameters["factor"])
    if kind == "llama3":
        return RopeScaling(
            kind=kind,
            factor=parameters["factor"],
            low_freq_factor=parameters["low_freq_factor"],
            high_freq_factor=parameters["high_freq_factor"],
            original_max_positions=parameters["original_max_position_embeddings"],
        )
    raise CheckpointError(f"{where}: rotary scaling of the type {kind!r} is not supported.")


def _folder_eos(folder: ModelFolder, config: Any) -> tuple[int, ...]:
    """Return the end tokens of generation_config.json, else those of config.json."""
    from transformers import GenerationConfig

    eos = config.eos_token_id
    if (folder.path / "generation_config.json").is_file():
        try:
            generation = GenerationConfig.from_pretrained(folder.path)
        except (OSError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"{folder.path}: generation_config.json is not usable: {error}"
            ) from error
        eos = generation.eos_token_id if generation.eos_token_id is not None else eos
    if eos is None:
        return ()
    return tuple(eos) if isinstance(eos, list | tuple) else (int(eos),)


def config_from_gguf(file: GgufFile) -> ModelConfig:
    """Read GGUF metadata.

    Raises CheckpointError when a key is missing or a feature is not supported.
    """
    where, metadata = str(file.path), file.metadata
    name = metadata.get("general.architecture")
    if not isinstance(name, str) or name not in _GGUF_ARCHITECTURES:
        raise CheckpointError(
            f"{where}: the architecture {name!r} is not supported;"
            f" supported in GGUF files: {', '.join(_GGUF_ARCHITECTURES)}."
        )
    numbers = _Numbers(where, name, metadata)
    num_heads = numbers.count("attention.head_count")
    hidden_size = numbers.count("embedding_length")
    head_dim = numbers.count("attention.key_length", hidden_size // num_heads)
    _refuse_gguf_features(file, numbers, head_dim)
    return _checked(
        where,
        ModelConfig(
            architecture=_GGUF_ARCHITECTURES[name],
            vocab_size=numbers.count("vocab_size", _num_tokens(file)),
            hidden_size=hidden_size,
            intermediate_size=numbers.count("feed_forward_length"),
            num_layers=numbers.count("block_count"),
            num_heads=num_heads,
            num_kv_heads=numbers.count("attention.head_count_kv", num_heads),
            head_dim=head_dim,
            norm_eps=numbers.real("attention.layer_norm_rms_epsilon"),
            rope_theta=numbers.real("rope.freq_base", 10000.0),
            rope_scaling=_gguf_rope_scaling(numbers),
            max_positions=numbers.count("context_length"),
            tied_embeddings="output.weight" not in file.tensors,
            eos_token_ids=_gguf_eos(metadata),
        ),
    )


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
        if not isinstance(value, int | float) or not 0 < value < math.inf:
            raise self._error(key)
        return float(value)

    def _error(self, key: str) -> CheckpointError:
        return CheckpointError(f"{self.where}: the metadata has no usable {self.prefix}.{key}.")


def _refuse_gguf_features(file: GgufFile, numbers: _Numbers, head_dim: int) -> None:
    if numbers.get("expert_count"):
        raise CheckpointError(f"{file.path}: mixture-of-experts models are not supported.")
    rotated = numbers.count("rope.dimension_count", head_dim)
    if rotated != head_dim:
        raise CheckpointError(
            f"{file.path}: rotating {rotated} of {head_dim} dimensions is not supported."
        )
    biases = [name for name in file.tensors if name.endswith(".bias")]
    if biases:
        raise CheckpointError(f"{file.path}: models with biases ({biases[0]!r}) are not supported.")


def _num_tokens(file: GgufFile) -> int | None:
    embedding = file.tensors.get("token_embd.weight")
    return embedding.shape[0] if embedding is not None and embedding.shape else None


def _gguf_rope_scaling(numbers: _Numbers) -> RopeScaling | None:
    kind = numbers.get("rope.scaling.type") or "none"
    if kind == "none":
        return None
    if kind == "linear":
        return RopeScaling(kind=kind, factor=numbers.real("rope.scaling.factor", 1.0))
    raise CheckpointError(f"{numbers.where}: rotary scaling of the type {kind!r} is not supported.")


def _gguf_eos(metadata: dict[str, Any]) -> tuple[int, ...]:
    """Return the declared end tokens, and what chat templates are known to end a turn with."""
    ids = {
        metadata[key]
        for key in ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")
        if isinstance(metadata.get(key), int)
    }
    tokens = metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, list):
        ids.update(tokens.index(token) for token in _END_OF_TURN if token in tokens)
    return tuple(sorted(ids))


def _checked(where: str, config: ModelConfig) -> ModelConfig:
    """Refuse sizes that cannot be a model's."""
    for field in ("vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads"):
        if getattr(config, field) < 1:
            raise CheckpointError(f"{where}: {field} is {getattr(config, field)}, not positive.")
    for field in ("norm_eps", "rope_theta"):
        value = getattr(config, field)
        if not isinstance(value, int | float) or not 0 < value < math.inf:
            raise CheckpointError(f"{where}: {field} is {value!r}, not a positive number.")
    if config.num_kv_heads < 1 or config.num_heads % config.num_kv_heads:
        raise CheckpointError(
            f"{where}: {config.num_heads} query heads cannot share {config.num_kv_heads} KV heads."
        )
    if (
        config.head_dim < 2
        or config.head_dim % 2
        or not (1 <= config.max_positions <= _MOST_POSITIONS)
    ):
        raise CheckpointError(
            f"{where}: a head of {config.head_dim} and a context of {config.max_positions}"
            " are not usable."
        )
    return config
