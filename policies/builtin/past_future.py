"""Reserve for the predicted peak of memory, with output lengths learned from the past."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from cadenza.policies.markers import hookimpl
from cadenza.policies.views import IntArray, RequestColumns, StepView

HISTORY = 1_000  # finished requests that are remembered
SHORTEST_HISTORY = 50  # below it, everybody is expected to use all of max_tokens
QUANTILE = 0.75  # of the lengths that a request may still have; the mean of a geometric law is 0.63
MAX_HORIZONS = 64  # moments at which the peak is looked for
AT_ONCE = 16  # of them; what is computed for so many stays in a core's cache


class PastFuture:
    """Keep what the running requests and the candidates are predicted to hold at their peak.

    A request that generated g tokens is expected to end with the QUANTILE of those past output
    lengths that exceed g, or with `max_tokens` where that is less or no past length exceeds g.
    With the remaining lengths r in descending order, memory peaks when one of the requests ends:
    `peak = max_i(sum_{j<=i} occupied_j + i * r_i)`, here in whole blocks of each request. The rule
    is Past-Future's (ASPLOS 2025). It draws r at random; a fixed quantile makes equal situations
    equal decisions.

    Above MAX_HORIZONS different values, r is rounded up to the next of MAX_HORIZONS that are kept:
    never too little, and 1,024 requests beside 1,024 candidates stay under a millisecond.
    Several choices share the full blocks of their prompt. Parked requests count like running ones,
    since they may go on at any time.
    """

    name = "past-future"

    def __init__(self) -> None:
        self._lengths = np.zeros(HISTORY, dtype=np.int64)  # a ring
        self._seen = 0  # requests that ever finished
        self._sorted = self._lengths[:0]

    @hookimpl
    def on_finished(self, finished: RequestColumns, step: StepView) -> None:
        lengths = finished.generated_tokens
        lengths = lengths[lengths > 0][-HISTORY:]  # none: it ended before it could show its length
        places = np.arange(self._seen, self._seen + len(lengths)) % HISTORY
        self._lengths[places] = lengths
        self._seen += len(lengths)
        self._sorted = np.sort(self._lengths[: self._seen])

    @hookimpl
    def reserve_blocks(
        self, running: RequestColumns, candidates: RequestColumns, step: StepView
    ) -> IntArray:
        """Peak blocks less what is held at entry, for each number of candidates that enter."""
        remaining = np.concatenate((self.remaining(running), self.remaining(candidates)))
        held = np.concatenate((running.blocks_held, -(-candidates.num_tokens // step.block_size)))
        peaks = _peaks(running, candidates, remaining, step.block_size)
        now = _entering(held, len(running))
        kept: IntArray = np.maximum(peaks - now, 0)
        return kept

    def remaining(self, requests: RequestColumns) -> IntArray:
        """Output tokens that each request is expected to generate yet; int64, at least 1."""
        generated, limit = requests.generated_tokens, requests.max_tokens
        expected = limit
        past = self._sorted
        if len(past) >= SHORTEST_HISTORY:
            shorter = np.searchsorted(past, generated, side="right")
            longer = len(past) - shorter
            rank = shorter + np.ceil(QUANTILE * longer).astype(np.int64) - 1
            expected = np.where(longer > 0, np.minimum(past[rank], limit), limit)
        yet: IntArray = np.maximum(expected - generated, 1)
        return yet


def _peaks(
    running: RequestColumns, candidates: RequestColumns, remaining: IntArray, block_size: int
) -> IntArray:
    """int64 [candidates + 1]: most blocks ever held by the running and the first k candidates."""
    if not len(remaining):
        return np.zeros(1, dtype=np.int64)
    horizons = _horizons(remaining).astype(np.int32)  # [horizons]; int32 halves the time
    lasts = horizons[np.searchsorted(horizons, remaining)]  # [requests], rounded up
    tokens = np.concatenate((running.num_tokens, candidates.num_tokens)).astype(np.int32)
    prompts = np.concatenate((running.prompt_tokens, candidates.prompt_tokens)).astype(np.int32)
    choices = np.concatenate((running.choices, candidates.choices)).astype(np.int32)
    several = np.flatnonzero(choices > 1)
    again = choices[several] - 1  # how often what is not shared comes on top
    peaks = np.zeros(len(candidates) + 1, dtype=np.int64)
    for first in range(0, len(horizons), AT_ONCE):
        moments = horizons[first : first + AT_ONCE, None]
        blocks = (tokens + np.int32(block_size - 1) + moments) // np.int32(block_size)
        blocks[:, several] += again * (blocks[:, several] - prompts[several] // block_size)
        blocks *= lasts >= moments  # [horizons, requests], 0 where ended by then
        np.maximum(peaks, _entering(blocks, len(running)).max(axis=0), out=peaks)
    return peaks


def _horizons(remaining: IntArray) -> IntArray:
    """The distinct remaining lengths, or MAX_HORIZONS of them, the longest included; ascending."""
    ordered = np.sort(remaining)
    values: IntArray = ordered[np.append(ordered[1:] > ordered[:-1], True)]
    if len(values) <= MAX_HORIZONS:
        return values
    kept = np.linspace(0, len(values) - 1, MAX_HORIZONS).round().astype(np.int64)
    spread: IntArray = values[kept]
    return spread


def _entering(blocks: npt.NDArray[Any], num_running: int) -> IntArray:
    """Sums over the last axis of the running requests and the first 0, 1, ... candidates."""
    first = blocks[..., :num_running].sum(axis=-1, keepdims=True)
    entering = np.concatenate((first, blocks[..., num_running:]), axis=-1)
    return np.cumsum(entering, axis=-1)
