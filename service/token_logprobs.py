"""Tokens with their log-probabilities; those of a prompt are made where they are looked at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import numpy as np

from cadenza.service.events import PositionLogprobs, TokenLogprob
from cadenza.service.tokenizer import Tokenizer
from cadenza.wire.arrays import view_floats, view_ids
from cadenza.wire.messages import PromptScores, RowLogprobs


def token_logprob(
    tokenizer: Tokenizer, token: int, logprob: float | None, rank: int | None = None
) -> TokenLogprob:
    """A token with its text and bytes."""
    utf8 = tokenizer.bytes[token]
    text = utf8.decode(errors="replace")
    return TokenLogprob(token_id=token, text=text, utf8=utf8, logprob=logprob, rank=rank)


def sampled_position(tokenizer: Tokenizer, token: int, logprobs: RowLogprobs) -> PositionLogprobs:
    """A sampled token and the best ones, as the engine told them."""
    best = zip(
        view_ids(logprobs.top_ids).tolist(),
        view_floats(logprobs.top_logprobs).tolist(),
        strict=True,
    )
    return PositionLogprobs(
        sampled=token_logprob(tokenizer, token, logprobs.logprob),
        top=[token_logprob(tokenizer, candidate, logprob) for candidate, logprob in best],
    )


class PromptLogprobs:
    """What the engine tells of a prompt's tokens, in whatever parts and however often."""

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int], top: int) -> None:
        self._tokenizer = tokenizer
        self._prompt = prompt
        self._logprobs = np.full(len(prompt), np.nan, dtype=np.float32)
        self._ranks = np.zeros(len(prompt), dtype=np.int32)
        self._top_ids = np.zeros((len(prompt), top), dtype=np.int32)
        self._top_logprobs = np.zeros((len(prompt), top), dtype=np.float32)

    def add(self, scores: PromptScores) -> None:
        """Take in some tokens' scores; those of a token are always the same.

        Raises:
            ValueError: the arrays do not fit together, or the prompt.
        """
        logprobs = view_floats(scores.logprobs)
        shape = len(logprobs), self._top_ids.shape[1]
        told = slice(scores.first, scores.first + len(logprobs))
        self._logprobs[told] = logprobs
        self._ranks[told] = view_ids(scores.ranks)
        self._top_ids[told] = view_ids(scores.top_ids).reshape(shape)
        self._top_logprobs[told] = view_floats(scores.top_logprobs).reshape(shape)

    def positions(self, top: int) -> Sequence[PositionLogprobs]:
        """Every token with the `top` best at its place; the first has no log-probability."""
        return _Positions(self, top)

    def __len__(self) -> int:
        return len(self._prompt)

    def position(self, index: int, top: int) -> PositionLogprobs:
        """One token, as `positions` has it."""
        token = int(self._prompt[index])
        if index == 0:  # nothing comes before it
            return PositionLogprobs(token_logprob(self._tokenizer, token, None), ())
        sampled = token_logprob(
            self._tokenizer, token, float(self._logprobs[index]), int(self._ranks[index])
        )
        best = zip(
            self._top_ids[index, :top].tolist(),
            self._top_logprobs[index, :top].tolist(),
            strict=True,
        )
        return PositionLogprobs(
            sampled,
            [
                token_logprob(self._tokenizer, candidate, logprob, rank)
                for rank, (candidate, logprob) in enumerate(best, start=1)
            ],
        )


class _Positions(Sequence[PositionLogprobs]):
    """Each made when it is looked at."""

    def __init__(self, told: PromptLogprobs, top: int) -> None:
        self._told = told
        self._top = top

    def __len__(self) -> int:
        return len(self._told)

    @overload
    def __getitem__(self, index: int) -> PositionLogprobs: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[PositionLogprobs]: ...

    def __getitem__(self, index: int | slice) -> PositionLogprobs | Sequence[PositionLogprobs]:
        if isinstance(index, slice):
            return [self._told.position(i, self._top) for i in range(*index.indices(len(self)))]
        return self._told.position(range(len(self))[index], self._top)
