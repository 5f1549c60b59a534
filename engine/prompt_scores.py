"""Log-probabilities of prompts' own tokens, chunk by chunk as prompts are computed."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from cadenza.engine.models import Model
from cadenza.kernels.logprobs import logprobs
from cadenza.scheduler.plan import Int32Array, PromptScores, Seated, StepPlan
from cadenza.wire.messages import Sampling

# Of the vocabulary in fp32, 128 rows take 25 MB at 49,152 tokens
_SLICE = 128


class _Wanted(NamedTuple):
    top: int  # best tokens at each position
    prompt_tokens: int


class PromptScorer:
    """Scores the prompts of those seats whose settings ask for it.

    A row scores each position in the pass that computes it. Where a prefix is found in the cache
    nothing is scored: who wants scores brings a salt of its own, and finds only what it computed
    itself.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self._wanted: dict[int, _Wanted] = {}  # by seat

    @property
    def is_needed(self) -> bool:
        """Whether any seat may have something to score."""
        return bool(self._wanted)

    def seat(self, seated: Seated, sampling: Sampling) -> None:
        """Note what the request that takes a seat wants."""
        self._wanted.pop(seated.seat, None)
        if sampling.prompt_logprobs is not None:
            self._wanted[seated.seat] = _Wanted(sampling.prompt_logprobs, seated.prompt_tokens)

    def scores(self, plan: StepPlan, hidden: Tensor) -> list[PromptScores]:
        """Score what the plan computes of these prompts. hidden: [tokens, hidden], of the plan."""
        starts = np.cumsum(plan.num_new) - plan.num_new
        scores = []
        for row in np.flatnonzero(np.isin(plan.seats, list(self._wanted))).tolist():
            seat, first = int(plan.seats[row]), int(plan.num_context[row])
            wanted = self._wanted[seat]
            end = first + int(plan.num_new[row])
            if end >= wanted.prompt_tokens:
                self._leave(plan, row)
            end = min(end, wanted.prompt_tokens - 1)  # after the last one comes the output
            for start in range(first, end, _SLICE):
                num = min(_SLICE, end - start)
                offset = int(starts[row]) + start - first
                scored = self._scored(
                    hidden[offset : offset + num],
                    plan.histories[seat, start + 1 : start + 1 + num],
                    wanted.top,
                )
                scores.append(PromptScores(int(plan.requests[row]), start + 1, *scored))
        return scores

    def _leave(self, plan: StepPlan, row: int) -> None:
        """A row is through with its prompt, and so are the choices that draw from it first."""
        for seat in (plan.seats[row], *plan.sample_seats[plan.samples == row]):
            self._wanted.pop(int(seat), None)

    def _scored(
        self, hidden: Tensor, tokens: Int32Array, top: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return log-probabilities, ranks, and the best tokens with theirs, at each position.

        NaN counts as -inf, for it can be neither compared nor ranked: what is told is of no use
        then, but nobody else's step is lost.
        """
        logits = _without_nan(self._model.logits(hidden))
        targets = torch.from_numpy(tokens.astype(np.int64)).to(logits.device).unsqueeze(1)
        ranks = 1 + (logits > logits.gather(1, targets)).sum(dim=1)
        count = min(top, logits.shape[1])
        values = np.full(len(tokens), -np.inf, dtype=np.float32)
        ids = np.tile(np.arange(count, dtype=np.int32), (len(tokens), 1))
        best = np.full((len(tokens), count), -np.inf, dtype=np.float32)
        rows = np.flatnonzero(logits.amax(dim=1).isfinite().cpu().numpy())
        found = logprobs(logits, rows.tolist(), tokens[rows].tolist(), [count] * len(rows))
        for row, of_row in zip(rows, found, strict=True):
            values[row], ids[row], best[row] = of_row
        return values, ranks.cpu().numpy().astype(np.int32), ids, best


def _without_nan(values: Tensor) -> Tensor:
    return values.masked_fill(values.isnan(), -torch.inf)
