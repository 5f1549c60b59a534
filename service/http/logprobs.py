"""Log-probabilities in bounded pieces: each costs several times what its token does.

At 20 a token, building and encoding them takes about 0.1 ms of the event loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from cadenza.service.errors import InvalidRequest
from cadenza.service.events import Delta, Event
from cadenza.service.http.call import Call

MAX_POSITIONS = 128  # told in one event, or encoded without giving way to others
MAX_LOGPROBS = 1 << 20  # in one call, some 130 MB of JSON

_encoder = msgspec.json.Encoder()


class JsonList:
    """A JSON array that is encoded as it grows, so that its end is cheap."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def extend(self, values: Sequence[Any]) -> None:
        """Append values, of which there must be at least one."""
        self._parts.append(_encoder.encode(values)[1:-1])

    def whole(self) -> msgspec.Raw:
        """The array."""
        return msgspec.Raw(b"[%b]" % b",".join(self._parts))


def bounded(batch: Sequence[Event]) -> Iterator[list[Event]]:
    """The batch as several, none with log-probabilities for more than MAX_POSITIONS tokens.

    A Delta that is divided keeps its text for its last part: text may lag behind the tokens, and
    never leads.
    """
    part: list[Event] = []
    room = MAX_POSITIONS
    for event in batch:
        for piece in _pieces(event):
            num_positions = len(piece.logprobs) if isinstance(piece, Delta) else 0
            if num_positions > room:
                yield part
                part, room = [], MAX_POSITIONS
            part.append(piece)
            room -= num_positions
    yield part


def _pieces(event: Event) -> Iterator[Event]:
    if not isinstance(event, Delta) or len(event.logprobs) <= MAX_POSITIONS:
        yield event
        return
    last = (len(event.logprobs) - 1) // MAX_POSITIONS * MAX_POSITIONS
    for start in range(0, last, MAX_POSITIONS):
        cut = slice(start, start + MAX_POSITIONS)
        yield Delta(
            choice=event.choice,
            text="",
            token_ids=event.token_ids[cut],
            logprobs=event.logprobs[cut],
        )
    yield Delta(
        choice=event.choice,
        text=event.text,
        token_ids=event.token_ids[last:],
        logprobs=event.logprobs[last:],
    )


def refuse_costly(call: Call, max_model_len: int | None) -> None:
    """Refuse a call that may ask for more than MAX_LOGPROBS; wrong values are left to others.

    Raises:
        InvalidRequest: it may. Without max_tokens it may fill the model's context.
    """
    first = call.requests[0]
    if type(first.logprobs) is not int:
        return
    num_tokens = first.max_tokens if first.max_tokens is not None else max_model_len
    n = first.n if first.n is not None else 1
    if type(num_tokens) is not int or type(n) is not int:
        return
    most = len(call.requests) * n * num_tokens * (first.logprobs + 1)
    if most > MAX_LOGPROBS:
        raise InvalidRequest(
            f"logprobs for up to {most} tokens and alternatives are more than {MAX_LOGPROBS}: "
            "ask for fewer, or for a smaller max_tokens or n.",
            "logprobs",
        )
