"""Which tokens a row's settings favour, and which they forbid."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from operator import eq
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from cadenza.scheduler.plan import Seated
from cadenza.wire.arrays import view_floats, view_ids
from cadenza.wire.messages import Sampling

_FORBIDDEN = float("-inf")


class Constraints:
    """Biases, allowed tokens, bad words and the least number of tokens, for one seat.

    Like `Penalties` a function of the tokens alone. The front makes sure that a token is always
    left: what is forbidden at once never covers what is allowed.
    """

    def __init__(
        self, sampling: Sampling, seated: Seated, vocab_size: int, device: torch.device
    ) -> None:
        self._device = device
        self._bias: tuple[Tensor, Tensor] | None = None  # ids, and what is added to their logits
        self._refused: Tensor | None = None  # [vocab_size], bool: not among the allowed
        if sampling.bias_ids:
            biases = torch.from_numpy(view_floats(sampling.biases).astype(np.float32))
            self._bias = _ids(sampling.bias_ids, device), biases.to(device)
        if sampling.allowed_ids:
            self._refused = torch.ones(vocab_size, dtype=torch.bool, device=device)
            self._refused[_ids(sampling.allowed_ids, device)] = False
        self._ending = sampling.ending_ids
        self._missing = sampling.min_tokens - (len(seated.tokens) - seated.prompt_tokens)
        self._never = [word[0] for word in sampling.bad_words if len(word) == 1]
        self._words = _by_eve(sampling.bad_words)
        reach = max(map(len, sampling.bad_words), default=1) - 1
        output = seated.tokens[seated.prompt_tokens :]
        last = output[max(0, len(output) - reach) :].tolist()
        self._said = deque(reversed(last), maxlen=reach)  # latest first

    def add(self, token: int) -> None:
        """Note the output's next token."""
        self._missing -= 1
        self._said.appendleft(token)

    def applied(self, logits: Tensor) -> Tensor:
        """Return one row's logits [vocab_size], -inf where forbidden; `logits` is not written to.

        It is `logits` itself where nothing applies to the next token.
        """
        if self._bias is not None:
            logits = logits.index_add(0, *self._bias)
        if self._refused is not None:
            logits = logits.masked_fill(self._refused, _FORBIDDEN)
        if forbidden := self._forbidden_now():
            logits = logits.index_fill(0, self._sent(forbidden), _FORBIDDEN)
        return logits

    def _sent(self, ids: list[int]) -> Tensor:
        """Pinned: a copy from other memory would wait for the pass that is under way."""
        host = torch.tensor(ids, pin_memory=self._device.type == "cuda")
        return host.to(self._device, non_blocking=True)

    def _forbidden_now(self) -> list[int]:
        """What would end the output too soon, and what would complete a bad word."""
        forbidden = list(self._ending) if self._missing > 0 else []
        forbidden += self._never
        if self._said:
            forbidden += [
                word.last
                for word in self._words.get(self._said[0], ())
                if len(word.before) <= len(self._said) and all(map(eq, word.before, self._said))
            ]
        return forbidden


class _Word(NamedTuple):
    before: tuple[int, ...]  # what is said before its last token, latest first
    last: int


def _by_eve(words: Sequence[Sequence[int]]) -> dict[int, list[_Word]]:
    """Return the words of several tokens by their last but one: a step looks at few of them."""
    found: dict[int, list[_Word]] = {}
    for word in words:
        if len(word) > 1:
            *before, last = word
            found.setdefault(before[-1], []).append(_Word(tuple(reversed(before)), last))
    return found


def _ids(data: bytes, device: torch.device) -> Tensor:
    return torch.from_numpy(view_ids(data).astype(np.int64)).to(device)


def constraints_of(
    sampling: Sampling, seated: Seated, vocab_size: int, device: torch.device
) -> Constraints | None:
    """Return the constraints of a seat; None where its settings have none."""
    is_constrained = (
        sampling.bias_ids or sampling.allowed_ids or sampling.bad_words or sampling.min_tokens
    )
    return Constraints(sampling, seated, vocab_size, device) if is_constrained else None
