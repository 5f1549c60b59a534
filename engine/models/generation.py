"""What a checkpoint says of generating: its end tokens, and how to sample unless a client says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from cadenza.checkpoints import CheckpointError
from cadenza.wire.messages import SamplingDefaults

_END_OF_TURN = ("<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>")
_MOST_TOP_K = 2**31 - 1
# As much as a client may ask for
_RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0.0, 100.0),
    "top_k": (-1, _MOST_TOP_K),  # -1 and 0 are off
    "top_p": (1e-9, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.01, 100.0),
}
_GGUF_NAMES = {
    "temperature": "general.sampling.temp",
    "top_k": "general.sampling.top_k",
    "top_p": "general.sampling.top_p",
    "min_p": "general.sampling.min_p",
    "repetition_penalty": "general.sampling.penalty_repeat",
}


def folder_defaults(where: str, generation: Mapping[str, Any]) -> SamplingDefaults:
    """Return the defaults of a generation_config.json. Raises CheckpointError for odd values."""
    return _defaults(where, {name: (name, generation.get(name)) for name in _RANGES})


def gguf_defaults(where: str, metadata: Mapping[str, Any]) -> SamplingDefaults:
    """Return the defaults of GGUF metadata. Raises CheckpointError for odd values."""
    return _defaults(where, {name: (key, metadata.get(key)) for name, key in _GGUF_NAMES.items()})


def _defaults(where: str, found: Mapping[str, tuple[str, Any]]) -> SamplingDefaults:
    """found: for each setting, what the checkpoint calls it and its value, None if it has none."""
    settings: dict[str, Any] = {}
    for name, (told_as, value) in found.items():
        if value is None:
            continue
        low, high = _RANGES[name]
        kind, noun = (int, "a whole number ") if name == "top_k" else (int | float, "")
        if isinstance(value, bool) or not isinstance(value, kind) or not low <= value <= high:
            raise CheckpointError(
                f"{where}: {told_as} is {value!r}, not {noun}from {low} to {high}."
            )
        settings[name] = max(value, 0) if name == "top_k" else float(value)
    return SamplingDefaults(**settings)


def folder_eos(where: str, generation: Mapping[str, Any], configured: Any) -> tuple[int, ...]:
    """Return the end tokens of generation_config.json, else those of config.json."""
    eos = generation.get("eos_token_id")
    eos = configured if eos is None else eos
    ids = eos if isinstance(eos, list | tuple) else () if eos is None else (eos,)
    if any(not isinstance(token, int) or isinstance(token, bool) for token in ids):
        raise CheckpointError(f"{where}: eos_token_id is {eos!r}, not ids of tokens.")
    return tuple(ids)


def check_eos(where: str, ids: Iterable[int], vocab_size: int) -> None:
    """Raise CheckpointError for end tokens that the model does not have."""
    for token in ids:
        if not 0 <= token < vocab_size:
            raise CheckpointError(
                f"{where}: the end token {token} is not one of the {vocab_size} tokens."
            )


def gguf_eos(metadata: Mapping[str, Any]) -> tuple[int, ...]:
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
