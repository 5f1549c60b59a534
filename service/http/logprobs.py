"""Log-probabilities in bounded pieces: each costs several times what its token does.

At 20 a token, building and encoding them takes about 0.1 ms of the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from cadenza.service.events import Delta, Echo, Event, PositionLogprobs, PromptScored

MAX_POSITIONS = 128  # told in one event, or encoded without giving way to others
MIN_LOGPROB = -9999.0  # JSON has no infinity; vLLM's floor

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
    if isinstance(event, Echo):
        yield from _echoed(event)
        return
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


def _echoed(echo: Echo) -> Iterator[Delta]:
    """An echo as deltas without tokens; what is looked at of its logprobs is made now."""
    num = len(echo.logprobs)
    for start in range(0, max(num, 1), MAX_POSITIONS):
        yield Delta(
            choice=echo.choice,
            text=echo.text if start + MAX_POSITIONS >= num else "",
            token_ids=(),
            logprobs=echo.logprobs[start : start + MAX_POSITIONS],
        )


async def prompt_logprobs(scored: PromptScored) -> msgspec.Raw:
    """vLLM's list of a prompt's log-probabilities, made with others' turns in between."""
    told = JsonList()
    for start in range(0, len(scored.logprobs), MAX_POSITIONS):
        told.extend(
            [_by_id(position) for position in scored.logprobs[start : start + MAX_POSITIONS]]
        )
        await asyncio.sleep(0)
    return told.whole()


def _by_id(position: PositionLogprobs) -> dict[str, dict[str, Any]] | None:
    if position.sampled.logprob is None:
        return None
    return {
        str(token.token_id): {
            "logprob": floor(token.logprob),
            "rank": token.rank,
            "decoded_token": token.text,
        }
        for token in (*position.top, position.sampled)
    }


def floor(logprob: float | None) -> float | None:
    """The log-probability as JSON can carry it; None where there is none."""
    if logprob is None:
        return None
    return max(logprob, MIN_LOGPROB) if logprob == logprob else MIN_LOGPROB
