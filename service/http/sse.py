"""Server-sent events. Lines end in LF alone: benchmark clients split on two of them only."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import msgspec
import structlog
from starlette.types import Scope, Send

from cadenza.service.errors import RequestError
from cadenza.service.http.connection import Connection, connection_of
from cadenza.service.http.errors import ClientGone, error_object, unexpected_object

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]

_log = structlog.get_logger(__name__)

json = msgspec.json.Encoder().encode


class Named(NamedTuple):
    """An event that has a type, so that clients which know none pass it over."""

    type: str
    data: Any


def encoded(event: Any) -> bytes:
    """An event, which is a value as JSON, or a `Named` one."""
    if isinstance(event, Named):
        return b"event: %b\ndata: %b\n\n" % (event.type.encode(), json(event.data))
    return b"data: %b\n\n" % json(event)


def around(value: Any, hole: str) -> tuple[bytes, bytes]:
    """What comes before and after the last `hole`, a text in `value`, in its event.

    An event of another text is `before + json(text) + after`, which costs a fraction.
    """
    before, _, after = encoded(value).rpartition(json(hole))
    return before, after


class EventStream:
    """One response. Headers go out with the first event, so that until then it may be an error."""

    def __init__(self, send: Send, connection: Connection) -> None:
        self._send = send
        self.connection = connection  # past which small events may go while nobody is in `send`
        self.started = False

    async def send(self, events: bytes) -> None:
        """Send encoded events in one write."""
        await self._write(events)

    async def close(self) -> None:
        """The end, after events that say so themselves."""
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def finish(self) -> None:
        """The end of a whole answer."""
        await self._write(b"data: [DONE]\n\n", more=False)

    async def fail(self, error: Any) -> None:
        """The end of a cut answer: without [DONE], lest it be taken for a whole one."""
        await self._write(encoded(error), more=False)

    async def _write(self, data: bytes, *, more: bool = True) -> None:
        if not data:
            return
        if not self.started:
            self.started = True
            await self._send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        await self._send({"type": "http.response.body", "body": data, "more_body": more})


@asynccontextmanager
async def opened(scope: Scope, send: Send) -> AsyncGenerator[EventStream]:
    """A stream as the response. What is raised once it has begun is told as its last event.

    Raises:
        Exception: as raised within, where nothing has been sent; and `ClientGone` in any case.
    """
    stream = EventStream(send, connection_of(scope))
    try:
        yield stream
    except ClientGone:
        raise
    except Exception as error:
        if not stream.started:
            raise
        if isinstance(error, RequestError):
            await stream.fail(error_object(error))
        else:
            _log.exception("response_cut", path=scope["path"])
            await stream.fail(unexpected_object())
