"""A request's body: read within a limit, decoded strictly."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope

from cadenza.service.errors import InvalidRequest
from cadenza.service.http.connection import connection_of
from cadenza.service.http.errors import ClientGone

MAX_BODY_BYTES = 4 << 20
MAX_DEPTH = 64  # of objects and lists within each other: more than any field has


async def read_json(
    scope: Scope, receive: Receive, max_bytes: int = MAX_BODY_BYTES
) -> dict[str, Any]:
    """The body as a JSON object.

    Raises:
        HTTPException: 413 over `max_bytes`, 415 for a compressed body, 408 for one that takes
            longer than the connection's `body_s`.
        InvalidRequest: no JSON, no object, or one that is nested more than `MAX_DEPTH` deep.
        ClientGone: the client left before it had sent everything.
    """
    headers = Headers(scope=scope)
    if headers.get("content-encoding", "identity") != "identity":
        raise HTTPException(415, "A compressed body is not supported.")
    length = headers.get("content-length", "")
    if length.isdecimal() and int(length) > max_bytes:
        raise _too_large(max_bytes)
    try:
        async with asyncio.timeout(connection_of(scope).limits.body_s):
            body = await _read(receive, max_bytes)
    except TimeoutError as error:
        message = "The body did not arrive in time."
        raise HTTPException(408, message, {"connection": "close"}) from error
    return _decode(body)


async def _read(receive: Receive, max_bytes: int) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        body += message.get("body", b"")
        if len(body) > max_bytes:
            raise _too_large(max_bytes)
        if not message.get("more_body", False):
            return bytes(body)


def _decode(body: bytes) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(body)
    except RecursionError as error:
        raise _too_deep() from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        # the reason is left out: it may quote bytes that no JSON can carry back
        raise InvalidRequest("The body is not valid JSON in UTF-8.") from error
    if not isinstance(value, dict):
        raise InvalidRequest("The body must be a JSON object.")
    if body.count(b"[") + body.count(b"{") > MAX_DEPTH:  # else it cannot be deeper
        _refuse_depth(value)
    return value


def _refuse_depth(value: Any) -> None:
    """Here, once for all who walk over a field or quote it, and would be at the stack's end."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for each in level
            for child in (each.values() if type(each) is dict else each)
            if type(child) in (dict, list)
        ]
        if not level:
            return
    raise _too_deep()


def _too_deep() -> InvalidRequest:
    return InvalidRequest(f"The body is nested more than {MAX_DEPTH} deep.")


def _too_large(max_bytes: int) -> HTTPException:
    return HTTPException(413, f"The body is larger than {max_bytes} bytes.")
