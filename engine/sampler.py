"""Choosing tokens from logits, row by row, with no state but that of the seats.

A row's token is a function of its logits, its settings, its position and, under constraints and
penalties, its text, so it does not depend on the batch, and is the same after a preemption.
Constraints and penalties come first; how what they leave is filtered and drawn from is the
sampling kernel's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from cadenza.engine.shaping import Shaping, host_masks_of, shaped_at_once, shaping_of
from cadenza.engine.uploads import Array
from cadenza.kernels.logit_masks import HostMasks
from cadenza.kernels.logprobs import logprobs
from cadenza.kernels.sampling import (
    LEAST_TEMPERATURE,
    SETTINGS,
    HostColumns,
    SettingsArray,
    columns_of,
    sample,
    sample_by_columns,
)
from cadenza.kernels.triton_backend import uses_triton
from cadenza.scheduler.plan import BoolArray, Int32Array, Logprobs, Seated
from cadenza.wire.messages import Sampling


class Sampled(NamedTuple):
    """What became of each row of logits."""

    tokens: Int32Array  # [rows], -1 where failed
    failed: BoolArray  # [rows], True: NaN, +inf, or nothing above -inf
    logprobs: dict[int, Logprobs]  # row -> its log-probabilities, where asked for


class Told(NamedTuple):
    """What the device is told of a step's rows before it samples them."""

    columns: HostColumns
    masks: HostMasks


class Draws(NamedTuple):
    """How the rows of a step are sampled."""

    seats: Int32Array  # [rows]
    settings: SettingsArray  # [rows]
    told: Told | None  # where Triton samples, which does not read settings

    @property
    def arrays(self) -> Sequence[Array]:
        """What the device has to be told beforehand."""
        return () if self.told is None else (*self.told.columns.arrays, *self.told.masks.arrays)


NOTHING_SAMPLED = Sampled(np.empty(0, dtype=np.int32), np.empty(0, dtype=np.bool_), {})


class Sampler:
    """Samples a step's rows by the settings of their seats."""

    def __init__(self, num_seats: int, vocab_size: int, device: torch.device) -> None:
        self._settings = np.zeros(num_seats, dtype=SETTINGS)  # by seat, but for the position
        self._logprobs: dict[int, int] = {}  # seat -> how many of the best it wants told
        self._shaping: dict[int, Shaping] = {}  # by seat
        self._vocab_size = vocab_size
        self._device = device

    @property
    def num_seats(self) -> int:
        return len(self._settings)

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

    def draws(self, seats: Int32Array, positions: Int32Array) -> Draws:
        """Return how the rows of a step are sampled, no two of one seat.

        positions: [rows], the index in its sequence of the token being sampled.
        """
        settings = self._settings[seats]
        settings["position"] = positions
        if not uses_triton(self._device):
            return Draws(seats, settings, None)
        masks = host_masks_of(self._shapings(seats), self._vocab_size)
        return Draws(seats, settings, Told(columns_of(settings, self._vocab_size), masks))

    def draw(self, logits: Tensor, draws: Draws, tensors: Sequence[Tensor]) -> Tensor:
        """Return a token for each row, [rows] int32, -1 where it fails; on the logits' device.

        logits: [rows, vocab_size] fp32, not written to; tensors: `draws.arrays` on that device.
        Raises MemoryError.
        """
        if draws.told is None:
            shaped = self._shaped(logits, draws.seats)
            return torch.from_numpy(sample(logits, draws.settings, shaped))
        host_columns, host_masks = draws.told
        num_columns = len(host_columns.arrays)
        columns = host_columns.on_device(tensors[:num_columns])
        masks = host_masks.on_device(tensors[num_columns:])
        at_once = shaped_at_once(logits, self._shapings(draws.seats), masks)
        return sample_by_columns(logits, columns, at_once)

    def drawn(self, logits: Tensor, draws: Draws, tokens: Int32Array) -> Sampled:
        """Note what was drawn, and return it with the log-probabilities that are asked for."""
        failed = tokens < 0
        if self._shaping:
            for seat, token in zip(draws.seats.tolist(), tokens.tolist(), strict=True):
                if token >= 0 and seat in self._shaping:
                    self._shaping[seat].add(token)
        return Sampled(tokens, failed, self._wanted_logprobs(logits, draws.seats, tokens))

    def _shaped(self, logits: Tensor, seats: Int32Array) -> dict[int, Tensor]:
        """Return row -> its logits [vocab_size] as constraints and penalties make them."""
        return {row: it.applied(logits[row]) for row, it in self._shapings(seats).items()}

    def _shapings(self, seats: Int32Array) -> dict[int, Shaping]:
        """Return row -> what changes its logits."""
        if not self._shaping:
            return {}
        return {
            row: self._shaping[seat]
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
