"""Every operation of the HTTP API: what it takes, tells and refuses. A test compares routes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cadenza.service.errors import (
    ChangeUnderWay,
    DeadlineExceeded,
    EngineUnavailable,
    Forbidden,
    GenerationFailed,
    InvalidRequest,
    OffsetGone,
    Overloaded,
    QuotaExceeded,
    RequestError,
    StreamCancelled,
    StreamConflict,
    StreamTakenOver,
    Unauthenticated,
    UnknownModel,
    UnknownPolicy,
    UnknownRequest,
    UnknownStream,
)
from cadenza.service.http.resumable import PLACE_HEADER
from cadenza.service.wishes import TENANT_HEADER, TIMEOUT_HEADER, TPOT_HEADER, TTFT_HEADER

Errors = tuple[type[RequestError], ...]

_BODY_STATUSES = (408, 413, 415)
_ADMIN: Errors = (Unauthenticated, Forbidden)
_ENCODING: Errors = (InvalidRequest, UnknownModel, Overloaded, EngineUnavailable)
_RESUMING: Errors = (UnknownStream, StreamConflict, StreamTakenOver, StreamCancelled, OffsetGone)
_ENDING: Errors = (DeadlineExceeded, GenerationFailed)
_GENERATING: Errors = (*_ENCODING, QuotaExceeded, *_ENDING, *_RESUMING)
_CHANGING: Errors = (*_ADMIN, InvalidRequest, ChangeUnderWay, EngineUnavailable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One method of one path. Schemas go by their names among the document's components."""

    method: str
    path: str
    tag: str
    summary: str
    takes: str | None = None  # the body
    tells: str | None = None  # the answer's JSON
    streams: str | None = None  # each event's JSON, if the body asks for a stream
    text_type: str | None = None  # media type of an answer that is text
    errors: Errors = ()
    statuses: Sequence[int] = ()  # of errors that are about HTTP itself
    empty_statuses: Sequence[int] = ()  # of answers without a body
    headers: Sequence[str] = ()
    is_admin: bool = False


def _generation(path: str, summary: str, name: str) -> Operation:
    return Operation(
        method="POST",
        path=path,
        tag="Generation",
        summary=summary,
        takes=f"{name}Request",
        tells=name,
        streams=f"{name}Chunk",
        errors=_GENERATING,
        statuses=_BODY_STATUSES,
        empty_statuses=(204,),
        headers=(TENANT_HEADER, TTFT_HEADER, TPOT_HEADER, TIMEOUT_HEADER, PLACE_HEADER),
    )


def _encoding(path: str, summary: str, takes: str, tells: str) -> Operation:
    return Operation(
        method="POST",
        path=path,
        tag="Tokens",
        summary=summary,
        takes=takes,
        tells=tells,
        errors=_ENCODING,
        statuses=_BODY_STATUSES,
    )


def _request(path: str, summary: str, tells: str) -> Operation:
    return Operation(
        method="GET",
        path=path,
        tag="Requests",
        summary=summary,
        tells=tells,
        errors=(UnknownRequest, InvalidRequest),
        headers=(TENANT_HEADER,),
    )


def _probe(method: str, path: str, summary: str) -> Operation:
    return Operation(
        method=method, path=path, tag="Health", summary=summary, empty_statuses=(200, 503)
    )


def _look(path: str, tag: str, summary: str, tells: str, *errors: type[RequestError]) -> Operation:
    return Operation(
        method="GET", path=path, tag=tag, summary=summary, tells=tells, errors=tuple(errors)
    )


def _admin(
    method: str, path: str, summary: str, tells: str, errors: Errors, takes: str | None = None
) -> Operation:
    return Operation(
        method=method,
        path=path,
        tag="Administration",
        summary=summary,
        takes=takes,
        tells=tells,
        errors=errors,
        statuses=_BODY_STATUSES if takes else (),
        is_admin=True,
    )


_LIVES = "Whether the engine serves, loads or is being replaced, rather than given up."
_RESET = "Forget every cached prefix; requests that run go on."

OPERATIONS: Sequence[Operation] = (
    _generation("/v1/chat/completions", "Answer a chat.", "ChatCompletion"),
    _generation("/v1/completions", "Go on from a prompt.", "Completion"),
    _look("/v1/models", "Models", "The served names.", "ModelList"),
    _look("/v1/models/{model}", "Models", "One served name.", "Model", UnknownModel),
    _encoding("/tokenize", "The token ids of a prompt or a chat.", "TokenizeRequest", "Tokens"),
    _encoding("/detokenize", "The text of token ids.", "DetokenizeRequest", "Text"),
    _request("/v1/requests/{id}", "How far a request is.", "Request"),
    _request(
        "/v1/requests/{id}/timeline", "What the scheduler decided about it.", "RequestTimeline"
    ),
    Operation(
        method="GET",
        path="/v1/streams/{stream_id}",
        tag="Generation",
        summary="Go on reading a stream.",
        streams="StreamChunk",
        errors=_GENERATING,  # of the stream's request, before it has told anything
        empty_statuses=(204,),
        headers=(TENANT_HEADER, PLACE_HEADER),
    ),
    Operation(
        method="DELETE",
        path="/v1/streams/{stream_id}",
        tag="Generation",
        summary="Give a stream up.",
        tells="Done",
        errors=(UnknownStream, InvalidRequest),
        headers=(TENANT_HEADER,),
    ),
    _probe("GET", "/health", _LIVES),
    _probe("GET", "/ping", _LIVES),
    _probe("POST", "/ping", _LIVES),
    _probe("GET", "/ready", "Whether a request sent now is served now."),
    _look("/version", "Health", "The service's version.", "Version"),
    _look("/load", "Health", "Requests whose answers have not been delivered.", "Load"),
    Operation(
        method="GET",
        path="/metrics",
        tag="Health",
        summary="Metrics, in Prometheus's text format.",
        text_type="text/plain",
    ),
    _look("/openapi.json", "Documentation", "This document.", "Document"),
    Operation(
        method="GET",
        path="/docs",
        tag="Documentation",
        summary="This document as a page.",
        text_type="text/html",
    ),
    _admin("POST", "/reset_prefix_cache", _RESET, "Done", (*_ADMIN, EngineUnavailable)),
    _admin("POST", "/flush_cache", _RESET, "Done", (*_ADMIN, EngineUnavailable)),
    _admin(
        "GET",
        "/v1/policies",
        "Which policies decide, and how they fare.",
        "PolicyReport",
        (*_ADMIN, EngineUnavailable),
    ),
    _admin(
        "PUT",
        "/v1/policies/profile",
        "Let other policies decide.",
        "PolicyReport",
        _CHANGING,
        "PolicyProfile",
    ),
    _admin(
        "PUT",
        "/v1/policies/shadow",
        "Ask other policies as well, and compare.",
        "PolicyReport",
        _CHANGING,
        "PolicyProfile",
    ),
    _admin("DELETE", "/v1/policies/shadow", "Ask them no more.", "PolicyReport", _CHANGING),
    _admin(
        "POST",
        "/v1/policies/{policy}/release",
        "Ask a quarantined policy again.",
        "PolicyReport",
        (*_CHANGING, UnknownPolicy),
    ),
)
