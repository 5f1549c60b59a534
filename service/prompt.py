"""A request's prompt, checked but not yet encoded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cadenza.service import fields
from cadenza.service.chat_template import USUAL, ChatOptions
from cadenza.service.errors import InvalidRequest
from cadenza.service.limits import Limits
from cadenza.service.messages import check_messages
from cadenza.service.request import Former, GenerationRequest
from cadenza.service.template_variables import check_variables
from cadenza.wire.messages import Ready

_INT32 = 2**31 - 1
SIDES = ("left", "right")


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncation:
    """What of a prompt that is too long is left out."""

    tokens: int | None  # that are kept at most; None: what leaves room for the answer
    keeps_end: bool  # else the beginning


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """Exactly one of the first three is set. Ids are empty where a former request just goes on."""

    text: str | None = None
    token_ids: Sequence[int] | None = None
    messages: Sequence[Mapping[str, Any]] | None = None
    former: Former | None = None  # whose tokens come before them
    chat: ChatOptions = USUAL  # for messages
    add_special_tokens: bool = True  # before a text or a chat
    truncation: Truncation | None = None

    @property
    def field(self) -> str:
        """The client's name for it."""
        return "messages" if self.messages is not None else "prompt"

    @property
    def num_former(self) -> int:
        """Tokens of another request that this one begins with."""
        return 0 if self.former is None else len(self.former.token_ids)

    @property
    def num_chars(self) -> int:
        """Characters to encode; none for token ids."""
        contents = (message["content"] for message in self.messages or ())
        return len(self.text or "") + sum(map(len, contents))


def check_prompt(
    request: GenerationRequest, limits: Limits, engine: Ready, room_for: int
) -> Prompt:
    """The prompt; of ids that are too long only those that are kept, with room for an answer.

    Args:
        room_for: tokens of the answer that a truncated prompt must leave room for.

    Raises:
        InvalidRequest: names the field that is wrong.
    """
    given = (request.text, request.token_ids, request.messages)
    num_given = sum(value is not None for value in given)
    if num_given > 1 or not (num_given or request.former):
        raise InvalidRequest("Exactly one of a prompt and messages must be given.", "prompt")
    truncation = _truncation(request, engine.max_model_len)
    if request.former is not None:
        return _check_appended(request, limits, engine, truncation)
    if request.text is not None:
        return Prompt(
            text=fields.string(request.text, "prompt", empty=False),
            add_special_tokens=_flag(request.add_special_tokens, "add_special_tokens", True),
            truncation=truncation,
        )
    if request.token_ids is not None:
        ids = fields.items(request.token_ids, "prompt", _INT32)
        if truncation is not None:
            ids = truncated(ids, truncation, engine.max_model_len - room_for)
        return Prompt(token_ids=_token_ids(ids, engine))
    return Prompt(
        messages=check_messages(request.messages, limits.max_messages),
        chat=_chat_options(request),
        add_special_tokens=_flag(request.add_special_tokens, "add_special_tokens", False),
        truncation=truncation,
    )


def _check_appended(
    request: GenerationRequest, limits: Limits, engine: Ready, truncation: Truncation | None
) -> Prompt:
    """What comes after the tokens of a former request, which have been checked."""
    if _flag(request.add_special_tokens, "add_special_tokens", False):
        raise InvalidRequest(
            "What is appended is not opened again: leave out add_special_tokens.",
            "add_special_tokens",
        )
    former = request.former
    if request.text is not None:
        text = fields.string(request.text, "prompt", empty=False)
        return Prompt(text=text, former=former, add_special_tokens=False, truncation=truncation)
    if request.messages is not None:
        return Prompt(
            messages=check_messages(request.messages, limits.max_messages),
            former=former,
            chat=_chat_options(request),
            add_special_tokens=False,
            truncation=truncation,
        )
    ids = () if request.token_ids is None else _token_ids(request.token_ids, engine)
    return Prompt(token_ids=ids, former=former, truncation=truncation)


def truncated(
    ids: Sequence[int], truncation: Truncation, room: int, num_kept: int = 0
) -> Sequence[int]:
    """The ids that a truncation leaves, the first `num_kept` among them where that is possible.

    Args:
        room: tokens that the context has for the prompt.
    """
    most = max(1, room) if truncation.tokens is None else truncation.tokens
    if len(ids) <= most:
        return ids
    if not truncation.keeps_end:
        return ids[:most]
    if num_kept >= most:
        num_kept = 0
    return [*ids[:num_kept], *ids[len(ids) - most + num_kept :]]


def token_ids(value: Any, field: str, max_items: int, vocab_size: int) -> Sequence[int]:
    """A list of at most `max_items` ids of the vocabulary.

    Raises:
        InvalidRequest: it is none; names the first element that is wrong.
    """
    ids = fields.items(value, field, max_items)
    for index, token in enumerate(ids):
        if type(token) is not int or not 0 <= token < vocab_size:
            raise InvalidRequest(
                f"{field}[{index}] must be a token id between 0 and {vocab_size - 1}.", field
            )
    return ids


def refuse_overlong(prompt_tokens: int, max_model_len: int, field: str) -> None:
    """A prompt must leave room for one token at least.

    Raises:
        InvalidRequest: it does not.
    """
    if prompt_tokens >= max_model_len:
        raise InvalidRequest(
            f"The prompt has {prompt_tokens} tokens, which leaves no room in the model's "
            f"context of {max_model_len} tokens.",
            field,
        )


def _token_ids(ids: Sequence[int], engine: Ready) -> Sequence[int]:
    if not ids:
        raise InvalidRequest("prompt must not be empty.", "prompt")
    refuse_overlong(len(ids), engine.max_model_len, "prompt")  # before looking at each
    return token_ids(ids, "prompt", _INT32, engine.vocab_size)


def _truncation(request: GenerationRequest, max_model_len: int) -> Truncation | None:
    side = "left" if request.truncation_side is None else request.truncation_side
    if side not in SIDES:
        raise InvalidRequest("truncation_side must be 'left' or 'right'.", "truncation_side")
    value = request.truncate_prompt_tokens
    if value is None:
        return None
    tokens = fields.integer(value, "truncate_prompt_tokens", -1, max_model_len - 1)
    if tokens == 0:
        raise InvalidRequest(
            "truncate_prompt_tokens must be a number of tokens, or -1.", "truncate_prompt_tokens"
        )
    return Truncation(tokens=None if tokens < 0 else tokens, keeps_end=side == "left")


def _chat_options(request: GenerationRequest) -> ChatOptions:
    continues = _flag(request.continue_final_message, "continue_final_message", False)
    opens = _flag(request.add_generation_prompt, "add_generation_prompt", not continues)
    if continues and opens:
        raise InvalidRequest(
            "continue_final_message goes on with the last message, and add_generation_prompt "
            "begins another: one of them only.",
            "continue_final_message",
        )
    return ChatOptions(
        add_generation_prompt=opens,
        continue_final_message=continues,
        variables=check_variables(request.chat_template_kwargs),
    )


def _flag(value: Any, field: str, default: bool) -> bool:
    return default if value is None else fields.flag(value, field)
