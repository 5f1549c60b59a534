"""Which tokens a row's settings favour, and which they forbid."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from operator import eq
from typing import NamedTuple

import numpy as np
from torch import Tensor

from cadenza.kernels.logit_masks import RowMask, masked_reference, packed
from cadenza.scheduler.plan import Seated
from cadenza.wire.arrays import view_floats, view_ids
from cadenza.wire.messages import Sampling


class Constraints:
    """Biases, allowed tokens, bad words and the least number of tokens, for one seat.

    Like `Penalties` a function of the tokens alone. The front makes sure that a token is always
    left: what is forbidden at once never covers what is allowed.
    """

    def __init__(self, sampling: Sampling, seated: Seated, vocab_size: int) -> None:
        # copies, for torch wants memory that may be written to
        self._bias_ids = view_ids(sampling.bias_ids).astype(np.int32)
        self._biases = view_floats(sampling.biases).astype(np.float32)
        allowed = view_ids(sampling.allowed_ids)
        self._allowed = packed(allowed, vocab_size) if len(allowed) else None
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

        They are on the CPU. It is `logits` itself where nothing applies to the next token.
        """
        return masked_reference(logits, self.mask())

    def mask(self) -> RowMask:
        """Return what applies to the next token."""
        return RowMask(self._bias_ids, self._biases, self._allowed, self._forbidden_now())

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


def constraints_of(sampling: Sampling, seated: Seated, vocab_size: int) -> Constraints | None:
    """Return the constraints of a seat; None where its settings have none."""
    is_constrained = (
        sampling.bias_ids or sampling.allowed_ids or sampling.bad_words or sampling.min_tokens
    )
    return Constraints(sampling, seated, vocab_size) if is_constrained else None
