"""What clients may send, as JSON Schema: bounds come from where they are enforced."""

from __future__ import annotations

from typing import Any

from cadenza.policies.choices import DECISIONS
from cadenza.policies.presets import PRESETS
from cadenza.service.constraints import MAX_BIAS
from cadenza.service.http.chat import MAX_TOP_LOGPROBS
from cadenza.service.http.completions import MAX_PROMPTS
from cadenza.service.http.schema import (
    FLAG,
    TEXT,
    Schema,
    closed,
    either,
    explained,
    integer,
    items,
    mapping,
    nullable,
    number,
    only,
    ref,
    taken,
    text,
)
from cadenza.service.http.unsupported import NEUTRAL
from cadenza.service.limits import Limits
from cadenza.service.messages import MAX_NAME_CHARS, MAX_PARTS, ROLES
from cadenza.service.prompt import SIDES
from cadenza.service.resumption import MAX_ID_CHARS, STREAM_ID
from cadenza.service.template_variables import MAX_VALUES, MAX_VARIABLES
from cadenza.service.validation import (
    INT32,
    INT64,
    MAX_REPETITION_PENALTY,
    MAX_TEMPERATURE,
    MIN_REPETITION_PENALTY,
)

_TOKEN: Schema = {"type": "integer", "minimum": 0}


def asked(limits: Limits) -> dict[str, Schema]:
    """The schemas of request bodies, by their names among the document's components."""
    common = _common(limits)
    unsupported = {field: _only_neutral(field) for field in NEUTRAL}
    chat = {
        "messages": items(ref("ChatMessage"), limits.max_messages, least=1),
        "logprobs": explained(FLAG, "Whether to tell log-probabilities."),
        "top_logprobs": explained(
            integer(0, MAX_TOP_LOGPROBS), "The best so many besides; needs `logprobs`."
        ),
        "add_generation_prompt": explained(
            FLAG, "Whether the assistant's turn is begun; default: unless the last is gone on with."
        ),
        "continue_final_message": explained(FLAG, "Go on with the last message."),
        "chat_template_kwargs": explained(
            {"type": "object", "maxProperties": MAX_VARIABLES},
            "Variables of the model's template, but those that the service sets; all they hold are "
            f"{MAX_VALUES} values at most.",
        ),
    }
    completion = {
        "prompt": _prompt(),
        "logprobs": explained(
            either(integer(0, limits.max_logprobs), only(False)),
            "Log-probabilities of the token drawn and of the best so many.",
        ),
        "top_logprobs": explained(only(0), "Belongs to chats."),
    }
    chat_fields = {**chat, **common, **unsupported}
    completion_fields = {**completion, **common, **unsupported}
    names = explained(FLAG, "Whether to tell `token_strs`.")
    return {
        "ChatMessage": _message(),
        "ChatCompletionRequest": taken(chat_fields, ["messages"]),
        "CompletionRequest": taken(completion_fields, ["prompt"]),
        "TokenizeRequest": explained(
            taken(
                {
                    **chat_fields,
                    **completion_fields,
                    "prompt": text(empty=False),
                    "messages": chat["messages"],
                    "logprobs": either(FLAG, integer(0, limits.max_logprobs)),
                    "top_logprobs": chat["top_logprobs"],
                    "return_token_strs": names,
                }
            ),
            "Exactly one of `prompt` and `messages`; fields mean what they mean for generation.",
        )
        | _one_of("prompt", "messages"),
        "DetokenizeRequest": taken({"tokens": items(_TOKEN), "model": TEXT}, ["tokens"]),
        "PolicyProfile": closed(
            preset=nullable(explained(only(*PRESETS), "What to begin with.")),
            decisions=_decisions(),
            options=mapping({"type": "object"}),
        ),
    }


_USUAL = "Default: what the model's makers advise, else"


def _common(limits: Limits) -> dict[str, Schema]:
    return {
        "model": explained(TEXT, "A served name; default: the first."),
        "max_tokens": explained(
            integer(0, INT32),
            "At most what the context has room for; 0 only beside `echo` or `prompt_logprobs`.",
        ),
        "max_completion_tokens": explained(
            integer(0, INT32), "Goes before `max_tokens`, and means the same."
        ),
        "min_tokens": explained(integer(0, INT32), "Before which no choice ends by itself."),
        "temperature": explained(number(0, MAX_TEMPERATURE), f"{_USUAL} 1."),
        "top_p": explained(number(0, 1, above=True), f"{_USUAL} 1."),
        "top_k": explained(integer(-1, INT32), f"-1 and 0 are off. {_USUAL} 0."),
        "min_p": explained(number(0, 1), f"{_USUAL} 0."),
        "presence_penalty": number(-2, 2, default=0),
        "frequency_penalty": number(-2, 2, default=0),
        "repetition_penalty": explained(
            number(MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY), f"{_USUAL} 1."
        ),
        "logit_bias": explained(
            mapping(number(-MAX_BIAS, MAX_BIAS), limits.max_logit_bias), "By token id."
        ),
        "allowed_token_ids": explained(items(_TOKEN), "No others are drawn."),
        "bad_words": explained(
            either(
                text(limits.max_bad_word_chars, empty=False),
                items(text(limits.max_bad_word_chars, empty=False), limits.max_bad_words),
            ),
            "Which never come.",
        ),
        "seed": integer(-INT64 - 1, INT64),
        "n": integer(1, limits.max_choices, default=1),
        "stop": either(
            text(limits.max_stop_chars, empty=False),
            items(text(limits.max_stop_chars, empty=False), limits.max_stops),
        ),
        "stop_token_ids": items(_TOKEN, limits.max_stop_token_ids),
        "include_stop_str_in_output": {**FLAG, "default": False},
        "skip_special_tokens": {**FLAG, "default": True},
        "echo": explained(
            {**FLAG, "default": False},
            "The text begins with the prompt; a chat's, with the assistant's last message. Not "
            "beside `stream_id`.",
        ),
        "prompt_logprobs": explained(
            integer(0, limits.max_logprobs),
            "Log-probabilities of the prompt's tokens, and of the best so many; not in streams.",
        ),
        "ignore_eos": {**FLAG, "default": False},
        "add_special_tokens": explained(
            FLAG, "What opens a prompt, such as BOS; default: for prompts, but not for chats."
        ),
        "truncate_prompt_tokens": explained(
            either(only(-1), {"type": "integer", "minimum": 1}),
            "Tokens of the prompt that are kept; -1: what leaves room for the answer.",
        ),
        "truncation_side": explained(only(*SIDES), "From which tokens are cut off."),
        "priority": explained(
            integer(-INT32 - 1, INT32, default=0), "Lower is earlier, where a policy looks at it."
        ),
        "cache_salt": explained(
            text(limits.max_salt_chars, empty=False), "Prefixes are shared only within one salt."
        ),
        "return_token_ids": explained(
            {**FLAG, "default": False},
            "Tell the ids of prompts and of what is said as well; not beside `stream_id`.",
        ),
        "stream": {**FLAG, "default": False},
        "stream_options": explained(
            taken({"include_usage": FLAG, "continuous_usage_stats": FLAG, "include_notices": FLAG}),
            "Needs `stream` to be true. Notices are events of type `cadenza.notice`.",
        ),
        "stream_id": explained(
            {**text(MAX_ID_CHARS, empty=False), "pattern": f"^{STREAM_ID.pattern}$"},
            "By which the stream can be resumed; needs `stream` to be true, and one prompt.",
        ),
        "best_of": explained(
            integer(1, limits.max_choices), "1, or as many as `n`: more are not ranked."
        ),
    }


def _prompt() -> Schema:
    one = (text(empty=False), items(_TOKEN, least=1))
    return explained(
        either(*one, items(either(*one), MAX_PROMPTS, least=1)),
        "A text, token ids, or several of either.",
    )


def _message() -> Schema:
    part = taken({"type": only("text"), "text": TEXT}, ["type", "text"])
    content = either(TEXT, items(part, MAX_PARTS))
    message = taken(
        {"role": only(*ROLES), "content": content, "name": text(MAX_NAME_CHARS)}, ["role"]
    )
    silent = {"properties": {"role": only("assistant")}}
    speaks = {"required": ["content"], "properties": {"content": {"not": {"type": "null"}}}}
    return {**message, **either(silent, speaks)}


def _one_of(field: str, other: str) -> Schema:
    """Either of two fields, and not both."""
    null: Schema = {"type": "null"}
    return either(
        *(
            {"required": [given], "properties": {given: {"not": null}, absent: null}}
            for given, absent in ((field, other), (other, field))
        )
    )


def _decisions() -> Schema:
    """Policies by decision, under either name."""
    names = sorted({*DECISIONS, *DECISIONS.values()})
    return closed(**dict.fromkeys(names, either(TEXT, items(TEXT))))


def _only_neutral(field: str) -> Schema:
    values: list[Any] = list(NEUTRAL[field])
    return explained(only(*values) if values else only(None), "Not supported with other values.")
