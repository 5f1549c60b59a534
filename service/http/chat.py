"""The words of /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cadenza.service import fields
from cadenza.service.errors import InvalidRequest
from cadenza.service.events import Delta, Finished, PositionLogprobs, TokenLogprob
from cadenza.service.http.call import Call, parse_call
from cadenza.service.http.dialect import ChoiceState
from cadenza.service.http.logprobs import floor

MAX_TOP_LOGPROBS = 20
_TEMPLATE = ("add_generation_prompt", "continue_final_message", "chat_template_kwargs")


class Chat:
    """Implements `Dialect`."""

    id_prefix = "chatcmpl-"
    object = "chat.completion"
    chunk_object = "chat.completion.chunk"
    scores_choices = False

    def parse(self, body: Mapping[str, Any]) -> Call:
        if body.get("messages") is None:
            raise InvalidRequest("messages is missing.", "messages")
        names = {"logprobs": "top_logprobs"}
        max_tokens = body.get("max_tokens")
        if body.get("max_completion_tokens") is not None:
            max_tokens = body["max_completion_tokens"]
            names["max_tokens"] = "max_completion_tokens"
        common = {
            "max_tokens": max_tokens,
            "logprobs": _logprobs(body),
            **{name: body.get(name) for name in _TEMPLATE},
        }
        return parse_call(body, [{"messages": body["messages"]}], common, names)

    def opening(self, choice: ChoiceState) -> dict[str, Any]:
        return _chunk(choice, {"role": "assistant", "content": ""})

    def delta(self, choice: ChoiceState, delta: Delta) -> dict[str, Any]:
        return _chunk(choice, {"content": delta.text}, delta.logprobs)

    def ending(self, choice: ChoiceState, finished: Finished) -> dict[str, Any]:
        ending = _chunk(choice, {})
        ending["finish_reason"] = finished.reason.value
        ending["stop_reason"] = finished.stop_reason
        return ending

    def keep_logprobs(self, choice: ChoiceState, logprobs: Sequence[PositionLogprobs]) -> None:
        choice.logprobs["content"].extend(_content(logprobs))

    def whole(self, choice: ChoiceState) -> dict[str, Any]:
        assert choice.finished is not None
        return {
            "index": choice.index,
            "message": {"role": "assistant", "content": "".join(choice.texts), "refusal": None},
            "logprobs": _refusable(choice.logprobs["content"].whole()) if choice.logprobs else None,
            "finish_reason": choice.finished.reason.value,
            "stop_reason": choice.finished.stop_reason,
        }


def _logprobs(body: Mapping[str, Any]) -> int | None:
    """OpenAI's switch and number as one: None is off."""
    wanted, count = body.get("logprobs"), body.get("top_logprobs")
    on = wanted is not None and fields.flag(wanted, "logprobs")
    if count is None:
        return 0 if on else None
    count = fields.integer(count, "top_logprobs", 0, MAX_TOP_LOGPROBS)
    if not on and count:
        raise InvalidRequest("top_logprobs needs logprobs to be true.", "top_logprobs")
    return count if on else None


def _chunk(
    choice: ChoiceState, delta: Mapping[str, Any], logprobs: Sequence[PositionLogprobs] = ()
) -> dict[str, Any]:
    return {
        "index": choice.index,
        "delta": delta,
        "logprobs": _refusable(_content(logprobs)) if logprobs else None,
        "finish_reason": None,
    }


def _refusable(content: Any) -> dict[str, Any]:
    return {"content": content, "refusal": None}


def _content(logprobs: Sequence[PositionLogprobs]) -> list[dict[str, Any]]:
    return [
        {**_token(position.sampled), "top_logprobs": [_token(token) for token in position.top]}
        for position in logprobs
    ]


def _token(token: TokenLogprob) -> dict[str, Any]:
    return {"token": token.text, "logprob": floor(token.logprob), "bytes": list(token.utf8)}
