"""Which tokens a row's settings favour, and which they forbid."""

from __future__ import annotations

from collections.abc import Sequence

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
            ids = torch.tensor(view_ids(sampling.bias_ids).tolist(), device=device)
            self._bias = ids, torch.tensor(view_floats(sampling.biases).tolist(), device=device)
        if sampling.allowed_ids:
            self._refused = torch.ones(vocab_size, dtype=torch.bool, device=device)
            self._refused[view_ids(sampling.allowed_ids).tolist()] = False
        self._bad_words = sampling.bad_words
        self._ending = sampling.ending_ids
        self._missing = sampling.min_tokens - (len(seated.tokens) - seated.prompt_tokens)
        self._reach = max(map(len, self._bad_words), default=1) - 1
        output = seated.tokens[seated.prompt_tokens :]
        self._tail: list[int] = output[max(0, len(output) - self._reach) :].tolist()

    def add(self, token: int) -> None:
        """Note the output's next token."""
        self._missing -= 1
        if self._reach:
            self._tail = [*self._tail, token][-self._reach :]

    def applied(self, logits: Tensor) -> Tensor:
        """Return one row's logits [vocab_size], -inf where forbidden; `logits` is not written to.

        It is `logits` itself where nothing applies to the next token.
        """
        if self._bias is not None:
            logits = logits.index_add(0, *self._bias)
        if self._refused is not None:
            logits = logits.masked_fill(self._refused, _FORBIDDEN)
        if forbidden := self._forbidden_now():
            logits = logits.index_fill(0, torch.tensor(forbidden, device=self._device), _FORBIDDEN)
        return logits

    def _forbidden_now(self) -> list[int]:
        """What would end the output too soon, and what would complete a bad word."""
        forbidden = list(self._ending) if self._missing > 0 else []
        forbidden += [word[-1] for word in self._bad_words if self._has_just_said(word[:-1])]
        return forbidden

    def _has_just_said(self, tokens: Sequence[int]) -> bool:
        return not tokens or self._tail[-len(tokens) :] == list(tokens)


def constraints_of(
    sampling: Sampling, seated: Seated, vocab_size: int, device: torch.device
) -> Constraints | None:
    """Return the constraints of a seat; None where its settings have none."""
    is_constrained = (
        sampling.bias_ids or sampling.allowed_ids or sampling.bad_words or sampling.min_tokens
    )
    return Constraints(sampling, seated, vocab_size, device) if is_constrained else None
