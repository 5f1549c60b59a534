"""What a model is: what anybody has to know of it to serve it, and what our own layers compute."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import TypeGuard

from cadenza.checkpoints import CheckpointError
from cadenza.engine.models.families import Activation, Family
from cadenza.engine.models.generation import check_eos
from cadenza.engine.models.rope import PerFrequency, Rope
from cadenza.wire.messages import SamplingDefaults

_MOST_POSITIONS = 1 << 22  # rotary tables of 1 GiB for a head of 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A decoder-only model to whoever serves it. Lengths are in tokens."""

    architecture: str  # transformers' class name
    vocab_size: int
    num_layers: int
    num_kv_heads: int
    head_dim: int
    max_positions: int
    eos_token_ids: tuple[int, ...]
    sampling: SamplingDefaults


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig(ModelConfig):
    """A model of one of the families, in full."""

    family: Family
    hidden_size: int
    intermediate_size: int
    num_heads: int
    norm_eps: float
    activation: Activation
    has_qkv_bias: bool
    has_output_bias: bool
    has_mlp_bias: bool
    scale: float  # of scores
    attention_softcap: float | None
    logits_softcap: float | None
    ropes: tuple[Rope, ...]  # of each layer
    windows: tuple[int | None, ...]  # of each layer: how many tokens one sees, itself among them
    tied_embeddings: bool

    @property
    def embedding_scale(self) -> float:
        """What embeddings are multiplied by before the first layer."""
        return math.sqrt(self.hidden_size) if self.family.scales_embeddings else 1.0


def visible_windows(windows: tuple[int | None, ...], max_positions: int) -> tuple[int | None, ...]:
    """Return windows without those that nothing is ever outside of."""
    return tuple(
        None if window is None or window >= max_positions else window for window in windows
    )


def is_positive_number(value: object) -> TypeGuard[int | float]:
    """Tell whether a checkpoint's value is a number above 0, and finite."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return 0 < value <= sys.float_info.max  # which a long integer may be above


def check_config(where: str, config: DecoderConfig) -> DecoderConfig:
    """Return `config`. Raises CheckpointError for sizes that cannot be a model's."""
    for field in ("vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads"):
        if getattr(config, field) < 1:
            raise CheckpointError(f"{where}: {field} is {getattr(config, field)}, not positive.")
    numbers = [(field, getattr(config, field)) for field in ("norm_eps", "scale")]
    softcaps = ("attention_softcap", "logits_softcap")
    numbers += [(field, cap) for field in softcaps if (cap := getattr(config, field)) is not None]
    for field, value in numbers:
        if not is_positive_number(value):
            raise CheckpointError(f"{where}: {field} is {value!r}, not a positive number.")
    check_eos(where, config.eos_token_ids, config.vocab_size)
    for rope in config.ropes:
        _check_rope(where, rope, config.head_dim)
    for window in config.windows:
        if window is not None and (not isinstance(window, int) or window < 1):
            raise CheckpointError(f"{where}: the window is {window!r}, not a number of tokens.")
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
    for kind, lengths in (("windows", config.windows), ("rotary positions", config.ropes)):
        if len(lengths) != config.num_layers:
            raise CheckpointError(
                f"{where}: {len(lengths)} layers have {kind}, but there are {config.num_layers}."
            )
    return config


def _check_rope(where: str, rope: Rope, head_dim: int) -> None:
    if not isinstance(rope.theta, int | float) or not 1 < rope.theta < math.inf:
        raise CheckpointError(f"{where}: rope_theta is {rope.theta!r}, not a number above 1.")
    if rope.rotated < 2 or rope.rotated % 2 or rope.rotated > head_dim:
        raise CheckpointError(
            f"{where}: rotating {rope.rotated} of {head_dim} dimensions is not possible."
        )
    scaling = rope.scaling
    if isinstance(scaling, PerFrequency) and 2 * len(scaling.factors) != rope.rotated:
        raise CheckpointError(
            f"{where}: {len(scaling.factors)} rotary frequencies have a factor, but there are"
            f" {rope.rotated // 2}."
        )
