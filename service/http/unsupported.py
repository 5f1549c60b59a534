"""Fields that clients know and we do not serve: neutral values pass, others are refused.

Ignoring them would answer another question than the one asked. Fields that nobody knows are
ignored, since OpenAI-compatible clients send many.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from cadenza.service.errors import InvalidRequest

_EMPTY: Collection[Any] = ([], {}, "")
_OFF: Collection[Any] = (False,)

# field -> values that change nothing; null never does
NEUTRAL: dict[str, Collection[Any]] = {
    "length_penalty": (1,),
    "logits_processors": _EMPTY,
    "use_beam_search": _OFF,
    "response_format": ({"type": "text"},),
    "structured_outputs": _EMPTY,
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "regex": (),
    "ebnf": (),
    "json_schema": (),
    "stop_regex": _EMPTY,
    "thinking_token_budget": (),
    "vllm_xargs": _EMPTY,
    "kv_transfer_params": _EMPTY,
    "tools": _EMPTY,
    "tool_choice": ("none", "auto"),
    "functions": _EMPTY,
    "function_call": ("none", "auto"),
    "suffix": ("",),
    "logprob_token_ids": _EMPTY,
    "chat_template": (),
    "documents": _EMPTY,
    "return_tokens_as_token_ids": _OFF,
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
}


def refuse_unsupported(body: Mapping[str, Any]) -> None:
    """Look at every known field that we do not serve.

    Raises:
        InvalidRequest: one has a value that would change the answer.
    """
    for field in body.keys() & NEUTRAL.keys():
        value = body[field]
        if value is not None and not _is_neutral(value, NEUTRAL[field]):
            raise InvalidRequest(f"{field} is not supported with this value.", field)
    _refuse_best_of(body)


def _is_neutral(value: Any, neutral: Collection[Any]) -> bool:
    # True == 1 and 0 == False in Python, but not in JSON
    return any(value == n and isinstance(value, bool) == isinstance(n, bool) for n in neutral)


def _refuse_best_of(body: Mapping[str, Any]) -> None:
    """Benchmarks send best_of 1; more than n choices would have to be ranked."""
    best_of = body.get("best_of")
    if best_of is not None and not _is_neutral(best_of, (1, body.get("n") or 1)):
        raise InvalidRequest("best_of is not supported.", "best_of")
