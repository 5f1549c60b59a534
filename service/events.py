"""What a running generation tells its reader, the same for SSE, JSON and gRPC.

Structs rather than dataclasses: some are made for every token, and a frozen dataclass takes longer
to make than all else that is done with it. The garbage collector need not know them, as they hold
nothing that leads back to them.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import TypeAlias

import msgspec


class FinishReason(Enum):
    """Why a choice ended, in OpenAI's words."""

    STOP = "stop"  # end of turn, a stop token or a stop string
    LENGTH = "length"  # max_tokens, or the model's context


class TokenLogprob(msgspec.Struct, frozen=True, gc=False):
    """One candidate token: its id, its text alone (lossy), its bytes, its log-probability.

    The last is the model's own: before penalties, temperature and filters. None: nothing comes
    before the token, as it is the first of a prompt.
    """

    token_id: int
    text: str
    utf8: bytes
    logprob: float | None
    rank: int | None = None  # 1 is the most probable; None: nobody counted


class PositionLogprobs(msgspec.Struct, frozen=True, gc=False):
    """The sampled token and the best ones at one position."""

    sampled: TokenLogprob
    top: Sequence[TokenLogprob]


class Admitted(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The first choice got a seat; `cached_tokens` of the prompt need not be computed."""

    cached_tokens: int


class Preempted(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A choice lost its seat for a while. Nothing is lost; tokens resume later."""

    choice: int


class PromptScored(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The prompt's own log-probabilities, before any output, for a request that wants them."""

    logprobs: Sequence[PositionLogprobs]  # one a token of the prompt, made as they are looked at
    first: int = 0  # index in the prompt of the first of them


class Echo(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a choice begins with that is not its own: the prompt, for a request that wants it."""

    choice: int
    text: str
    logprobs: Sequence[PositionLogprobs] = ()  # one a token, made as they are looked at


class Resumed(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A choice that was preempted got a seat again."""

    choice: int


class Parked(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A choice waits, since its reader takes no more tokens for now."""

    choice: int


class Unparked(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A choice that was parked goes on."""

    choice: int


class Delta(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """New output of one choice. `text` may be empty while a character or stop string is open."""

    choice: int
    text: str
    token_ids: Sequence[int]
    logprobs: Sequence[PositionLogprobs] = ()


class Finished(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One choice's end. Exactly one for each choice of a generation that does not fail."""

    choice: int
    reason: FinishReason
    stop_reason: str | int | None  # the stop string or stop token id; None for EOS and length
    completion_tokens: int


Notice: TypeAlias = Admitted | Preempted | Resumed | Parked | Unparked
Event: TypeAlias = Notice | PromptScored | Echo | Delta | Finished
