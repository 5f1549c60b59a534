"""Server-sent events. Lines end in LF alone: benchmark clients split on two of them only."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec
from starlette.types import Send

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]

_encoder = msgspec.json.Encoder()


class Named(NamedTuple):
    """An event that has a type, so that clients which know none pass it over."""

    type: str
    data: Any


class EventStream:
    """One response. Headers go out with the first event, so that until then it may be an error."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.started = False

    async def send(self, events: Iterable[Any]) -> None:
        """Send the events, encoded as JSON, in one write."""
        await self._write(b"".join(map(_encode, events)))

    async def finish(self) -> None:
        """The end of a whole answer."""
        await self._write(b"data: [DONE]\n\n", more=False)

    async def fail(self, error: Any) -> None:
        """The end of a cut answer: without [DONE], lest it be taken for a whole one."""
        await self._write(b"data: %b\n\n" % _encoder.encode(error), more=False)

    async def _write(self, data: bytes, *, more: bool = True) -> None:
        if not data:
            return
        if not self.started:
            self.started = True
            await self._send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        await self._send({"type": "http.response.body", "body": data, "more_body": more})


def _encode(event: Any) -> bytes:
    if isinstance(event, Named):
        return b"event: %b\ndata: %b\n\n" % (event.type.encode(), _encoder.encode(event.data))
    return b"data: %b\n\n" % _encoder.encode(event)
