"""Choosing tokens from logits, row by row, with no state but that of the seats.

A row's token is a function of its logits, its settings, its position and, under constraints and
penalties, its text, so it does not depend on the batch, and is the same after a preemption.
Constraints and penalties come first; how what they leave is filtered and drawn from is the
sampling kernel's.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from cadenza.engine.shaping import Shaping, shaping_of
from cadenza.kernels.logprobs import logprobs
from cadenza.kernels.sampling import LEAST_TEMPERATURE, SETTINGS, sample
from cadenza.scheduler.plan import BoolArray, Int32Array, Logprobs, Seated
from cadenza.wire.messages import Sampling


class Sampled(NamedTuple):
    """What became of each row of logits."""

    tokens: Int32Array  # [rows], -1 where failed
    failed: BoolArray  # [rows], True: NaN, +inf, or nothing above -inf
    logprobs: dict[int, Logprobs]  # row -> its log-probabilities, where asked for


NOTHING_SAMPLED = Sampled(np.empty(0, dtype=np.int32), np.empty(0, dtype=np.bool_), {})


class Sampler:
    """Samples a step's rows by the settings of their seats."""

    def __init__(self, num_seats: int, vocab_size: int, device: torch.device) -> None:
        self._settings = np.zeros(num_seats, dtype=SETTINGS)  # by seat, but for the position
        self._logprobs: dict[int, int] = {}  # seat -> how many of the best it wants told
        self._shaping: dict[int, Shaping] = {}  # by seat
        self._vocab_size = vocab_size
        self._device = device

    def seat(self, seated: Seated, sampling: Sampling, choice: int) -> None:
        """Hold the settings of the request that takes a seat, until the next one does."""
        seat = seated.seat
        temperature = sampling.temperature
        self._settings[seat] = (
            sampling.seed,
            temperature if temperature >= LEAST_TEMPERATURE else 0.0,
            sampling.top_p,
            sampling.min_p,
            sampling.top_k,
            0,
            choice,
        )
        self._logprobs.pop(seat, None)
        if sampling.logprobs is not None:
            self._logprobs[seat] = sampling.logprobs
        self._shaping.pop(seat, None)
        shaping = shaping_of(sampling, seated, self._vocab_size, self._device)
        if shaping is not None:
            self._shaping[seat] = shaping

    def sample(self, logits: Tensor, seats: Int32Array, positions: Int32Array) -> Sampled:
        """Sample one token a row, no two rows of one seat.

        logits: [rows, vocab_size] fp32, not written to. positions: [rows], the index in its
        sequence of the token being sampled. Raises MemoryError.
        """
        settings = self._settings[seats]
        settings["position"] = positions
        shaped = self._shaped(logits, seats)
        tokens = sample(logits, settings, shaped)
        failed = tokens < 0
        for row in shaped:
            if not failed[row]:
                self._shaping[int(seats[row])].add(int(tokens[row]))
        return Sampled(tokens, failed, self._wanted_logprobs(logits, seats, tokens))

    def _shaped(self, logits: Tensor, seats: Int32Array) -> dict[int, Tensor]:
        """Return row -> its logits [vocab_size] as constraints and penalties make them."""
        if not self._shaping:
            return {}
        return {
            row: self._shaping[seat].applied(logits[row])
            for row, seat in enumerate(seats.tolist())
            if seat in self._shaping
        }

    def _wanted_logprobs(
        self, logits: Tensor, seats: Int32Array, tokens: Int32Array
    ) -> dict[int, Logprobs]:
        if not self._logprobs:
            return {}
        asked = [
            (row, token, self._logprobs[seat])
            for row, (seat, token) in enumerate(zip(seats.tolist(), tokens.tolist(), strict=True))
            if seat in self._logprobs and token >= 0
        ]
        if not asked:
            return {}
        rows, sampled, counts = zip(*asked, strict=True)
        found = logprobs(logits, rows, sampled, counts)
        return {row: Logprobs(*of_row) for row, of_row in zip(rows, found, strict=True)}
