"""How long a forward pass takes, by what it computes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cadenza.policies.errors import quoted, unknown
from cadenza.simulator.errors import SimulatorError

Counts = npt.NDArray[np.integer[Any]]


class Work(NamedTuple):
    """What a pass computes, as the model of its time sees it."""

    tokens: float  # of prefills and decodes
    decodes: float  # rows that compute one token
    contexts: float  # tokens before those, which decodes read
    attention: float  # sum of p * (k + p / 2) over rows that compute p > 1 tokens after k
    prefill_contexts: float  # sum of k over these rows

    @property
    def is_mixed(self) -> bool:
        return self.decodes > 0 and self.tokens > self.decodes


def work_of(num_new: Counts, num_context: Counts) -> Work:
    """Of a plan's rows: int arrays [rows], tokens to compute, and tokens before them."""
    alone = num_new == 1
    decodes = int(np.count_nonzero(alone))
    contexts = float(num_context.sum())
    if decodes == len(num_new):
        return Work(decodes, decodes, contexts, 0.0, 0.0)
    prefills = ~alone
    count, before = num_new[prefills].astype(np.float64), num_context[prefills].astype(np.float64)
    attention = float((count * (before + count / 2)).sum())
    own = float(before.sum())
    return Work(float(count.sum()) + decodes, decodes, contexts - own, attention, own)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Seconds of a step, linear in what it computes beyond a knee.

        fixed_s + token_s * max(0, tokens - knee) + decode_s * decodes + context_s * contexts
        + attention_s * attention + prefill_context_s * prefill_contexts
        + where both kinds share the step: mixed_s + mixed_context_s * contexts

    Below the knee products wait for weights, so that tokens cost nothing. A decode's context costs
    twice as much and more beside a prefill, in kernel profiles of two GPUs.
    """

    fixed_s: float = 0.0
    knee: int = 0  # tokens
    token_s: float = 0.0
    decode_s: float = 0.0
    context_s: float = 0.0
    attention_s: float = 0.0
    prefill_context_s: float = 0.0
    mixed_s: float = 0.0
    mixed_context_s: float = 0.0

    def __post_init__(self) -> None:
        """Raises SimulatorError where a coefficient cannot be, or no step would take any time."""
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not is_number or not 0 <= value < math.inf:
                raise SimulatorError(
                    f"{field.name} must be a number from 0, and is {quoted(value)}"
                )
        if not self.fixed_s + self.token_s + self.decode_s > 0:
            raise SimulatorError("a step that takes no time cannot be simulated")

    def seconds(self, work: Work) -> float:
        """Of one pass."""
        seconds = (
            self.fixed_s
            + self.token_s * max(0.0, work.tokens - self.knee)
            + self.decode_s * work.decodes
            + self.context_s * work.contexts
            + self.attention_s * work.attention
            + self.prefill_context_s * work.prefill_contexts
        )
        if work.is_mixed:
            seconds += self.mixed_s + self.mixed_context_s * work.contexts
        return seconds

    def scaled(self, gain: float) -> StepTime:
        """All of it `gain` times as long, knee apart."""
        values = dataclasses.asdict(self)
        return StepTime(**{k: v if k == "knee" else gain * v for k, v in values.items()})


def step_time_of(values: Mapping[str, Any]) -> StepTime:
    """From a file's values.

    Raises:
        SimulatorError: there are others than a StepTime has, or some that it cannot have.
    """
    names = [field.name for field in dataclasses.fields(StepTime)]
    for name in values:
        if name not in names:
            raise SimulatorError(unknown("coefficient", name, names))
    return StepTime(**values)
