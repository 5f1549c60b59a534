"""What we answer with, as JSON Schema. Every object lists all its fields."""

from __future__ import annotations

from typing import Any

import msgspec

from cadenza.service.errors import STATUSES
from cadenza.service.events import FinishReason
from cadenza.service.http import notices
from cadenza.service.http.schema import (
    FLAG,
    INTEGER,
    NUMBER,
    TEXT,
    Schema,
    either,
    explained,
    items,
    mapping,
    nullable,
    only,
    ref,
    told,
)
from cadenza.service.metrics import DECISION_KINDS
from cadenza.service.policy_report import PolicyReport
from cadenza.wire.messages import Finished

_STATES = ("waiting", "running", "parked", "preempted", "swapped", "finished")
_MORE_TYPES = ("request_too_large", "server_error")  # of errors that are about HTTP itself


def answered() -> dict[str, Schema]:
    """The schemas of answers, by their names among the document's components."""
    return {
        **_errors(),
        **_generation(),
        **_pages(),
        **_requests(),
        **_policies(),
    }


def _errors() -> dict[str, Schema]:
    types = dict.fromkeys([*(status.type for status in STATUSES.values()), *_MORE_TYPES])
    codes = dict.fromkeys(status.code for status in STATUSES.values())
    error = told(
        message=TEXT,
        type=only(*types),
        param=explained(nullable(TEXT), "The field that is wrong, as the client calls it."),
        code=only(*codes, None),
    )
    return {"Error": told(error=error)}


def _generation() -> dict[str, Schema]:
    reason = only(*(reason.value for reason in FinishReason))
    stop_reason = explained(either(TEXT, INTEGER, {"type": "null"}), "The stop string or token id.")
    token = {"token": TEXT, "logprob": NUMBER, "bytes": items(INTEGER)}
    content = items(told(**token, top_logprobs=items(told(**token))))
    chat_logprobs = nullable(told(content=content, refusal={"type": "null"}))
    logprobs = nullable(
        told(
            tokens=items(TEXT),
            token_logprobs=items(nullable(NUMBER)),
            top_logprobs=items(nullable(mapping(NUMBER))),
            text_offset=items(INTEGER),
        )
    )
    scored = told(logprob=NUMBER, rank=INTEGER, decoded_token=TEXT)
    of_prompt = explained(
        items(nullable(mapping(scored))), "By token id, where `prompt_logprobs` ask for it."
    )
    head = {"id": TEXT, "created": INTEGER, "model": TEXT}
    message = told(role=only("assistant"), content=TEXT, refusal={"type": "null"})
    delta = {"type": "object", "properties": {"role": only("assistant"), "content": TEXT}}
    ends = {"finish_reason": reason, "stop_reason": stop_reason}
    may_end = {"finish_reason": nullable(reason), "stop_reason": stop_reason}
    chat_part = told(index=INTEGER, delta=delta, logprobs=chat_logprobs, **may_end)
    chat_part["required"].remove("stop_reason")  # told where a choice ends
    # Where they are asked for
    ids = {"token_ids": items(INTEGER)}
    prompt_ids = {"prompt_token_ids": items(INTEGER)}
    chat_choice = told(index=INTEGER, message=message, logprobs=chat_logprobs, **ends)
    part = told(index=INTEGER, text=TEXT, logprobs=logprobs, **may_end)
    return {
        "Usage": told(
            prompt_tokens=INTEGER,
            completion_tokens=INTEGER,
            total_tokens=INTEGER,
            prompt_tokens_details=told(cached_tokens=INTEGER),
        ),
        "ChatCompletion": _perhaps(
            told(
                **head,
                object=only("chat.completion"),
                choices=items(_perhaps(chat_choice, **ids)),
                usage=ref("Usage"),
            ),
            prompt_logprobs=of_prompt,
            **prompt_ids,
        ),
        "ChatCompletionChunk": _perhaps(
            _chunk(head, "chat.completion.chunk", _perhaps(chat_part, **ids)), **prompt_ids
        ),
        "Completion": told(
            **head,
            object=only("text_completion"),
            choices=items(
                _perhaps(
                    told(index=INTEGER, text=TEXT, logprobs=logprobs, **ends),
                    prompt_logprobs=of_prompt,
                    **ids,
                    **prompt_ids,
                )
            ),
            usage=ref("Usage"),
        ),
        "CompletionChunk": _chunk(head, "text_completion", _perhaps(part, **ids, **prompt_ids)),
        "Notice": explained(
            _perhaps(
                told(**head, object=only(notices.EVENT), notice=only(*notices.KINDS)),
                prompt=explained(INTEGER, "Which is `queued` or `admitted`."),
                queue_position=explained(INTEGER, "Choices of others that waited before it."),
                cached_tokens=explained(INTEGER, "Of the prompt, that need not be computed."),
                choice=explained(INTEGER, "Which the scheduler moved."),
            ),
            "An event of type `cadenza.notice`, where `stream_options` ask for them.",
        ),
        "StreamChunk": either(ref("ChatCompletionChunk"), ref("CompletionChunk")),
    }


def _perhaps(schema: Schema, **more: Schema) -> Schema:
    """The object with further properties, which are not always told."""
    return {**schema, "properties": {**schema["properties"], **more}}


def _chunk(head: dict[str, Schema], kind: str, choice: Schema) -> Schema:
    chunk = told(**head, object=only(kind), choices=items(choice), usage=nullable(ref("Usage")))
    chunk["required"].remove("usage")  # told where `stream_options` ask for it
    return chunk


def _pages() -> dict[str, Schema]:
    length = explained(nullable(INTEGER), "Null while the engine loads.")
    return {
        "Model": told(
            id=TEXT,
            object=only("model"),
            created=INTEGER,
            owned_by=TEXT,
            root=TEXT,
            parent={"type": "null"},
            max_model_len=length,
            permission=items({}, 0),
        ),
        "ModelList": told(object=only("list"), data=items(ref("Model"))),
        "Tokens": told(
            count=INTEGER,
            max_model_len=INTEGER,
            tokens=items(INTEGER),
            token_strs=nullable(items(TEXT)),
        ),
        "Text": told(prompt=TEXT),
        "Version": told(version=TEXT),
        "Load": told(server_load=INTEGER),
        "Done": told(status=only("ok")),
        "Document": {"type": "object", "required": ["openapi", "info", "paths"]},
    }


def _requests() -> dict[str, Schema]:
    reasons = [end.name.lower() for end in Finished if end is not Finished.NOT]
    choice = told(
        index=INTEGER,
        state=only(*_STATES),
        reason=only(*reasons, "refused", None),
        generated_tokens=nullable(INTEGER),
        preemptions=INTEGER,
    )
    record = told(
        choice=INTEGER,
        kind=only(*DECISION_KINDS),
        step_id=INTEGER,
        time_s=explained(NUMBER, "Since the request was sent to the engine."),
        facts=mapping(either(FLAG, NUMBER, TEXT)),
    )
    return {
        "Request": told(
            id=TEXT,
            object=only("request"),
            created=INTEGER,
            model=TEXT,
            state=only(*_STATES),
            prompt_tokens=INTEGER,
            cached_tokens=nullable(INTEGER),
            choices=items(choice),
        ),
        "RequestTimeline": told(
            id=TEXT,
            object=only("request.timeline"),
            created=INTEGER,
            records=items(record),
            dropped=INTEGER,
        ),
    }


def _policies() -> dict[str, Schema]:
    """From the structs that the report is encoded from."""
    _, components = msgspec.json.schema_components(
        [PolicyReport], ref_template="#/components/schemas/{name}"
    )
    named: dict[str, Any] = components
    return named
