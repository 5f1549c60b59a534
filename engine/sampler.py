"""Choosing tokens from logits, row by row, with no state but that of the seats.

A row's token is a function of its logits, its settings, its position and, under constraints and
penalties, its text, so it does not depend on the batch, and is the same after a preemption. After
constraints and penalties, filters apply in transformers' order: temperature, top-k, top-p, min-p;
then the largest of logit + Gumbel noise is taken, which is a sample of the softmax over the kept
tokens. Ties go to the lowest token id everywhere.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from cadenza.engine.shaping import Shaping, shaping_of
from cadenza.kernels.philox import gumbel_noise, gumbel_noise_at
from cadenza.scheduler.plan import BoolArray, Int32Array, Logprobs, Seated
from cadenza.wire.messages import Sampling

_GREEDY_BELOW = 1e-5  # temperatures under it would overflow fp32
_CANDIDATES = (256, 4096)  # sorted before a top-p filter asks for the whole vocabulary
_GREEDY = Sampling(temperature=0.0)


class Sampled(NamedTuple):
    """What became of each row of logits."""

    tokens: Int32Array  # [rows], -1 where failed
    failed: BoolArray  # [rows], True: NaN, +inf, or nothing above -inf
    logprobs: dict[int, Logprobs]  # row -> its log-probabilities, where asked for


NOTHING_SAMPLED = Sampled(np.empty(0, dtype=np.int32), np.empty(0, dtype=np.bool_), {})


class _SeatSettings(NamedTuple):
    sampling: Sampling
    choice: int


class Sampler:
    """Samples a step's rows by the settings of their seats."""

    def __init__(self, num_seats: int, vocab_size: int, device: torch.device) -> None:
        self._seats = [_SeatSettings(_GREEDY, 0)] * num_seats
        self._shaping: dict[int, Shaping] = {}  # by seat
        self._vocab_size = vocab_size
        self._device = device

    def seat(self, seated: Seated, sampling: Sampling, choice: int) -> None:
        """Hold the settings of the request that takes a seat, until the next one does."""
        self._seats[seated.seat] = _SeatSettings(sampling, choice)
        self._shaping.pop(seated.seat, None)
        shaping = shaping_of(sampling, seated, self._vocab_size, self._device)
        if shaping is not None:
            self._shaping[seated.seat] = shaping

    def sample(self, logits: Tensor, seats: Int32Array, positions: Int32Array) -> Sampled:
        """Sample one token a row, no two rows of one seat.

        logits: [rows, vocab_size] fp32, not written to. positions: [rows], the index in its
        sequence of the token being sampled.
        """
        settings = [self._seats[seat] for seat in seats.tolist()]
        # NaN wins any maximum, and the maximum is -inf only where no token is left
        failed: BoolArray = ~np.isfinite(logits.amax(dim=-1).cpu().numpy())
        tokens: Int32Array = logits.argmax(dim=-1).cpu().numpy().astype(np.int32)
        shaped = self._shaped(logits, seats)
        for row, values in shaped.items():
            # A token that is forbidden may have hidden what is not finite
            failed[row] |= not math.isfinite(values.max())
            tokens[row] = int(values.argmax())
        for row, seat in enumerate(settings):
            if seat.sampling.temperature >= _GREEDY_BELOW and not failed[row]:
                tokens[row] = _draw(shaped.get(row, logits[row]), seat, int(positions[row]))
        for row in shaped:
            if not failed[row]:
                self._shaping[int(seats[row])].add(int(tokens[row]))
        tokens[failed] = -1
        return Sampled(tokens, failed, _wanted_logprobs(logits, tokens, failed, settings))

    def _shaped(self, logits: Tensor, seats: Int32Array) -> dict[int, Tensor]:
        """Return row -> its logits [vocab_size] as constraints and penalties make them."""
        if not self._shaping:
            return {}
        return {
            row: self._shaping[seat].applied(logits[row])
            for row, seat in enumerate(seats.tolist())
            if seat in self._shaping
        }


def _draw(logits: Tensor, seat: _SeatSettings, position: int) -> int:
    """Return the token of one row [vocab_size] with finite maximum."""
    # the maximum first, so that no temperature can overflow
    scaled = (logits - logits.max()).div_(seat.sampling.temperature)
    kept = _kept(scaled, seat.sampling)
    if kept is None:
        return int((scaled + _noise(seat, position, scaled, None)).argmax())
    scores = scaled.index_select(0, kept) + _noise(seat, position, scaled, kept)
    best = kept[scores == scores.max()]
    return int(best.min())


def _noise(seat: _SeatSettings, position: int, scaled: Tensor, kept: Tensor | None) -> Tensor:
    """Return the Gumbel noise of the kept tokens, or of all [vocab_size].

    Row by row: a row's ten rounds then stay in the processor's cache.
    """
    # a seed is unsigned; its bits travel as a signed int64
    seed = seat.sampling.seed - (1 << 64 if seat.sampling.seed >> 63 else 0)
    seeds, positions, choices = torch.tensor(
        [[seed], [position], [seat.choice]], device=scaled.device
    ).unbind()
    if kept is None:
        return gumbel_noise(seeds, positions, choices, len(scaled)).squeeze(0)
    return gumbel_noise_at(seeds, positions, choices, kept.unsqueeze(0)).squeeze(0)


def _kept(scaled: Tensor, sampling: Sampling) -> Tensor | None:
    """Return the ids of the tokens that the filters keep, at least one; None: all of them.

    scaled: [vocab_size], logits over temperature, the largest 0.
    """
    size = len(scaled)
    top_k = sampling.top_k if 0 < sampling.top_k < size else size
    kept = None
    if sampling.top_p < 1.0:
        kept = _top_p(scaled, top_k, sampling.top_p)
    elif top_k < size:
        kept = _best(scaled, top_k)
    if sampling.min_p <= 0.0:
        return kept
    # p >= min_p * largest p; the largest logit is 0
    least = math.log(min(sampling.min_p, 1.0))
    if kept is None:
        return torch.nonzero(scaled >= least).squeeze(1)
    return kept[scaled.index_select(0, kept) >= least]


def _best(values: Tensor, count: int) -> Tensor:
    """Return the ids of the `count` largest values, best first, equal ones by id."""
    least = values.topk(count).values[-1]
    candidates = torch.nonzero(values >= least).squeeze(1)
    order = values.index_select(0, candidates).argsort(descending=True, stable=True)
    return candidates.index_select(0, order[:count])


def _top_p(scaled: Tensor, top_k: int, top_p: float) -> Tensor:
    """Return the fewest best tokens of the top k whose probabilities reach `top_p`."""
    if top_k < len(scaled):
        ids = _best(scaled, top_k)
        return _reaching(ids, _softmax(scaled.index_select(0, ids)), top_p)
    probabilities = _softmax(scaled)
    for count in _CANDIDATES:
        ids = _best(scaled, min(count, len(scaled)))
        kept = _reaching(ids, probabilities.index_select(0, ids), top_p)
        if len(kept) < len(ids):
            return kept
    ids = _best(scaled, len(scaled))
    return _reaching(ids, probabilities.index_select(0, ids), top_p)


def _softmax(values: Tensor) -> Tensor:
    # as one row of a matrix: sums of a long vector would be split by the number of threads
    return torch.softmax(values.unsqueeze(0), dim=-1).squeeze(0)


def _reaching(ids: Tensor, probabilities: Tensor, top_p: float) -> Tensor:
    """Return the ids, best first, up to the first where the sum reaches `top_p`."""
    probabilities = probabilities.double()
    before = probabilities.cumsum(0) - probabilities
    return ids[: max(1, int((before < top_p).sum()))]


def _wanted_logprobs(
    logits: Tensor, tokens: Int32Array, failed: BoolArray, settings: list[_SeatSettings]
) -> dict[int, Logprobs]:
    return {
        row: _logprobs(logits[row], int(tokens[row]), seat.sampling.logprobs)
        for row, seat in enumerate(settings)
        if seat.sampling.logprobs is not None and not failed[row]
    }


def _logprobs(logits: Tensor, token: int, wanted: int) -> Logprobs:
    """Return the log-probability of `token` and of the `wanted` best, from raw logits."""
    values = torch.log_softmax(logits.unsqueeze(0), dim=-1).squeeze(0)
    ids = _best(logits, min(wanted, len(logits))) if wanted else torch.empty(0, dtype=torch.int64)
    top = values.index_select(0, ids.to(values.device))
    return Logprobs(
        sampled=float(values[token]),
        top_ids=ids.cpu().numpy().astype(np.int32),
        top_logprobs=top.cpu().numpy(),
    )
