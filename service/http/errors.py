"""Every HTTP error as OpenAI's JSON, whatever raised it."""

from __future__ import annotations

import math
from typing import Any

import msgspec
from starlette.responses import Response

from cadenza.service.errors import (
    UNEXPECTED,
    DeadlineExceeded,
    GenerationFailed,
    InvalidRequest,
    RequestError,
    Unauthenticated,
    status_of,
)

_TYPES = {413: "request_too_large", 500: "server_error"}


class ClientGone(Exception):
    """The client closed the connection; there is nobody to answer."""


class JsonResponse(Response):
    """msgspec's JSON, which is strict: no NaN, always UTF-8."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return msgspec.json.encode(content)


def error_object(error: RequestError) -> dict[str, Any]:
    """OpenAI's error object, as it stands in a body or an event."""
    status = status_of(error)
    return _object(error.message, status.type, error.field, status.code)


def error_response(error: RequestError) -> JsonResponse:
    """The response that refuses a request."""
    return JsonResponse(error_object(error), status_of(error).http, _headers(error))


def unexpected_object() -> dict[str, Any]:
    """The error object for an exception that nobody expected, which tells nothing of it."""
    return _object(UNEXPECTED, _TYPES[500], None, None)


def plain_error(status: int, message: str, headers: dict[str, str] | None = None) -> JsonResponse:
    """An error that is about HTTP itself."""
    kind = _TYPES.get(status, "invalid_request_error")
    return JsonResponse(_object(message, kind, None, None), status, headers)


def renamed(error: InvalidRequest, names: dict[str, str]) -> InvalidRequest:
    """The error with a field's name as the client wrote it, where that differs from ours."""
    theirs = names.get(error.field or "")
    if theirs is None or error.field is None:
        return error
    return InvalidRequest(error.message.replace(error.field, theirs), theirs)


def _object(message: str, kind: str, param: str | None, code: str | None) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def _is_final(error: RequestError) -> bool:
    """Whether a server's failure would come again."""
    if isinstance(error, GenerationFailed):
        return not error.retryable
    return isinstance(error, DeadlineExceeded)


def _headers(error: RequestError) -> dict[str, str]:
    if isinstance(error, Unauthenticated):
        return {"www-authenticate": "Bearer"}
    if _is_final(error):
        return {"x-should-retry": "false"}  # openai-python would retry any status from 500 on
    if error.retry_after_s is None:
        return {}
    return {
        "retry-after": str(math.ceil(error.retry_after_s)),
        "retry-after-ms": str(math.ceil(error.retry_after_s * 1000)),
    }
