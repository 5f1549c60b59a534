"""Log-probabilities in bounded pieces: each costs several times what its token does.

At 20 a token, building and encoding them takes about 0.1 ms of the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from cadenza.service.errors import InvalidRequest
from cadenza.service.events import Delta, Echo, Event, PositionLogprobs, PromptScored
from cadenza.service.http.call import Call
from cadenza.service.request import GenerationRequest

MAX_POSITIONS = 128  # told in one event, or encoded without giving way to others
MIN_LOGPROB = -9999.0  # JSON has no infinity; vLLM's floor
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


def refuse_costly(call: Call, max_model_len: int | None) -> None:
    """Refuse a call that may ask for more than MAX_LOGPROBS; wrong values are left to others.

    Raises:
        InvalidRequest: it may. Without max_tokens it may fill the model's context.
    """
    first = call.requests[0]
    n = 1 if first.n is None else first.n
    num_tokens = max_model_len if first.max_tokens is None else first.max_tokens
    numbers = (n, num_tokens, first.logprobs or 0, first.prompt_logprobs or 0)
    if num_tokens is None or any(type(number) is not int for number in numbers):
        return
    told = 0 if first.logprobs is None else n * (first.logprobs + 1)
    most = len(call.requests) * told * num_tokens
    if first.prompt_logprobs is not None or (first.echo and first.logprobs is not None):
        of_prompts = sum(_longest(request, max_model_len) for request in call.requests)
        echoed = told if first.echo and first.messages is None else 0
        scored = 0 if first.prompt_logprobs is None else first.prompt_logprobs + 1
        most += of_prompts * (echoed + scored)
    if most > MAX_LOGPROBS:
        raise InvalidRequest(
            f"logprobs for up to {most} tokens and alternatives are more than {MAX_LOGPROBS}: "
            "ask for fewer, or for a smaller max_tokens or n.",
            "logprobs" if told else "prompt_logprobs",
        )


def _longest(request: GenerationRequest, max_model_len: int | None) -> int:
    """Tokens that a prompt has at most."""
    if isinstance(request.token_ids, list):
        most = len(request.token_ids)
    elif isinstance(request.text, str):
        most = 4 * len(request.text) + 1  # a byte each
    else:
        return max_model_len or 0
    return most if max_model_len is None else min(most, max_model_len)
