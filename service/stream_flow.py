"""How far a stream that can be resumed runs ahead of its reader."""

from __future__ import annotations

from typing import Any

from cadenza.service.control import Control
from cadenza.service.request import GenerationRequest

# What an event takes at most, of usual token texts: its frame, and each log-probability
_EVENT_BYTES, _OFFSET_BYTES, _LOGPROB_BYTES = 768, 16, 400


def window_of(request: GenerationRequest, max_bytes: int) -> int:
    """Tokens of all choices whose events take at most `max_bytes`, and one for each choice."""
    n = _number(request.n, 1)
    each = _EVENT_BYTES + _OFFSET_BYTES * n
    if request.logprobs is not None:
        each += _LOGPROB_BYTES * (1 + _number(request.logprobs, 0))
    return max(n, max_bytes // each)


def _number(value: Any, default: int) -> int:
    """Wrong values are left to `Generator.submit`."""
    return value if type(value) is int and default <= value <= 1 << 16 else default


class StreamFlow(Control):
    """Grants credit so that at most `window` tokens wait for a reader, or are about to come.

    The request is submitted with `first`, and its own `credit` is kept to besides. It is parked
    while that is used up: the scheduler keeps its blocks as long as nobody needs them.
    """

    def __init__(self, window: int, credit: int | None = None) -> None:
        super().__init__()
        self._window = window
        self._asked = credit  # by the client, so far; None: without limit
        self._allowed = self.first = window if credit is None else min(window, credit)
        self._num_told = self._num_unread = 0

    def grant(self, tokens: int) -> None:
        """The client takes `tokens` more."""
        if self._asked is not None:
            self._asked += tokens
            self.let(self._num_told, self._num_unread)

    def let(self, num_told: int, num_unread: int) -> None:
        """`num_told` tokens have come, of which `num_unread` wait: let more come if there is room.

        In halves of the window, as each grant is a message.
        """
        self._num_told, self._num_unread = num_told, num_unread
        ahead = self._allowed - num_told + num_unread
        if 2 * ahead > self._window:
            return
        tokens = self._window - ahead
        if self._asked is not None:
            tokens = min(tokens, self._asked - self._allowed)
        if tokens > 0:
            self._allowed += tokens
            super().grant(tokens)
