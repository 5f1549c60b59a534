"""What is taken off the logits of tokens that already occur in a row's text."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from cadenza.kernels.penalties import penalised
from cadenza.scheduler.plan import Int32Array, Seated
from cadenza.wire.messages import Sampling


class Penalties:
    """What occurs in the text of one seat, for the penalties of its settings.

    A function of the tokens alone: a row that is seated again with its output has the same state
    as if it had never left.
    """

    def __init__(
        self, sampling: Sampling, seated: Seated, vocab_size: int, device: torch.device
    ) -> None:
        self._sampling = sampling
        self._seen: Tensor | None = None  # [vocab_size], bool: in prompt or output
        self._counts: Tensor | None = None  # [vocab_size], fp32: times in the output
        if sampling.repetition_penalty != 1.0:
            self._seen = (_counted(seated.tokens, vocab_size) > 0).to(device)
        if sampling.frequency_penalty or sampling.presence_penalty:
            output = seated.tokens[seated.prompt_tokens :]
            self._counts = _counted(output, vocab_size).float().to(device)

    def add(self, token: int) -> None:
        """Note the output's next token."""
        if self._seen is not None:
            self._seen[token] = True
        if self._counts is not None:
            self._counts[token] += 1.0

    def applied(self, logits: Tensor) -> Tensor:
        """Return one row's logits [vocab_size] less the penalties; `logits` is not written to."""
        return penalised(
            logits,
            self._seen,
            self._counts,
            repetition=self._sampling.repetition_penalty,
            frequency=self._sampling.frequency_penalty,
            presence=self._sampling.presence_penalty,
        )


def penalties_of(
    sampling: Sampling, seated: Seated, vocab_size: int, device: torch.device
) -> Penalties | None:
    """Return the penalties of a seat; None where its settings have none."""
    is_penalised = (
        sampling.repetition_penalty != 1.0
        or sampling.frequency_penalty != 0.0
        or sampling.presence_penalty != 0.0
    )
    return Penalties(sampling, seated, vocab_size, device) if is_penalised else None


def _counted(tokens: Int32Array, vocab_size: int) -> Tensor:
    """Return how often each token occurs, [vocab_size], int64."""
    return torch.from_numpy(np.bincount(tokens, minlength=vocab_size).astype(np.int64))
