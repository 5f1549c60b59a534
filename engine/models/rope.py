"""Rotary positions: which frequencies a layer rotates by, and how long contexts stretch them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Scaling(Protocol):
    """How frequencies are stretched."""

    @property
    def attention_factor(self) -> float:
        """What queries and keys are multiplied by as they are rotated."""
        ...

    def scaled(self, frequencies: Tensor, theta: float) -> Tensor:
        """Stretch frequencies [rotated / 2], radians a token, which theta has given."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """The rotary positions of a layer."""

    theta: float
    rotated: int  # dimensions of a head, the first ones; the rest has no position
    scaling: Scaling | None = None

    @property
    def attention_factor(self) -> float:
        return 1.0 if self.scaling is None else self.scaling.attention_factor

    def frequencies(self) -> Tensor:
        """Return the frequencies [rotated / 2], radians a token, fp32."""
        exponents = torch.arange(0, self.rotated, 2, dtype=torch.float32) / self.rotated
        frequencies = 1.0 / self.theta**exponents
        return frequencies if self.scaling is None else self.scaling.scaled(frequencies, self.theta)


@dataclass(frozen=True, slots=True)
class Linear:
    """All frequencies are divided by one factor."""

    factor: float
    attention_factor: float = 1.0

    def scaled(self, frequencies: Tensor, theta: float) -> Tensor:
        return frequencies / self.factor


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama3:
    """The slow frequencies are divided by the factor, the fast ones kept, those between blended.

    Source: `_compute_llama3_parameters` in transformers/modeling_rope_utils.py.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_positions: float
    attention_factor: float = 1.0

    def scaled(self, frequencies: Tensor, theta: float) -> Tensor:
        turns = self.original_max_positions * frequencies / (2.0 * math.pi)
        span = self.high_freq_factor - self.low_freq_factor
        blend = ((turns - self.low_freq_factor) / span).clamp(0.0, 1.0)
        return (1.0 - blend) * frequencies / self.factor + blend * frequencies


@dataclass(frozen=True, slots=True, kw_only=True)
class Yarn:
    """As llama3, but blended by a ramp over the dimensions, and with sharper attention.

    Source: https://arxiv.org/abs/2309.00071, section 3.4
    """

    factor: float
    original_max_positions: float
    beta_fast: float = 32.0  # turns within the original context; what turns more often is kept
    beta_slow: float = 1.0
    truncate: bool = True  # whether the ramp begins and ends at whole dimensions
    attention_factor: float

    def scaled(self, frequencies: Tensor, theta: float) -> Tensor:
        low, high = (
            self._dimension(turns, len(frequencies), theta)
            for turns in (self.beta_fast, self.beta_slow)
        )
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, 2 * len(frequencies) - 1)
        span = high - low or 0.001
        ramp = ((torch.arange(len(frequencies)) - low) / span).clamp(0.0, 1.0)
        return ramp * frequencies / self.factor + (1.0 - ramp) * frequencies

    def _dimension(self, turns: float, half: int, theta: float) -> float:
        """Return the pair of dimensions that turns so often within the original context."""
        length = self.original_max_positions / (turns * 2.0 * math.pi)
        return half * math.log(length) / math.log(theta)


@dataclass(frozen=True, slots=True, kw_only=True)
class PerFrequency:
    """Each frequency is divided by a factor of its own, as in LongRoPE and in GGUF files."""

    factors: tuple[float, ...]
    attention_factor: float = 1.0

    def scaled(self, frequencies: Tensor, theta: float) -> Tensor:
        return frequencies / torch.tensor(self.factors, dtype=torch.float32)


def yarn_attention_factor(factor: float, weight: float = 1.0) -> float:
    """Return what YaRN sharpens attention by: 1 + 0.1 weight ln(factor)."""
    return 1.0 if factor <= 1.0 else 0.1 * weight * math.log(factor) + 1.0


def longrope_attention_factor(factor: float, original_max_positions: float) -> float:
    """Return sqrt(1 + ln(factor) / ln(original)), of https://arxiv.org/abs/2402.13753."""
    if factor <= 1.0:
        return 1.0
    return math.sqrt(1.0 + math.log(factor) / math.log(original_max_positions))
