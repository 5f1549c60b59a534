"""Streams that outlive their connections, as server-sent events whose ids are places in them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, TypeAlias

import msgspec
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from cadenza.service.errors import InvalidRequest, RequestError
from cadenza.service.events import Delta, Event
from cadenza.service.generator import Generator
from cadenza.service.http import sse
from cadenza.service.http.call import Call
from cadenza.service.http.connection import connection_of
from cadenza.service.http.disconnect import while_connected
from cadenza.service.http.errors import JsonResponse, error_object
from cadenza.service.resumable_stream import Reader, ResumableStream, StreamKey, Tell
from cadenza.service.resumption import Resumption, stream_id
from cadenza.service.stream_log import Place
from cadenza.service.stream_telling import Telling
from cadenza.service.wishes import read_wishes

PLACE_HEADER = "last-event-id"

_END = b"\n\n"  # of an event
PLACE = re.compile(r"([0-9]{1,18}):([0-9]{1,10}(?:\.[0-9]{1,10}){0,63})")

# An event of a generation, or none, and the encoded events that it is told as
ByEvent: TypeAlias = tuple[Event | None, bytes]


def stream_routes(generator: Generator) -> list[Route]:
    """The routes for clients that have a stream's id, and not its request."""
    streams = _Streams(generator.resumption)
    path = "/v1/streams/{stream_id}"
    return [
        Route(path, streams, methods=["GET"]),
        Route(path, streams.cancel, methods=["DELETE"]),
    ]


class _Streams:
    """An ASGI application."""

    def __init__(self, resumption: Resumption) -> None:
        self._resumption = resumption

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """GET /v1/streams/ID: go on reading."""
        if scope["method"] != "GET":
            raise HTTPException(405, "Method Not Allowed", {"allow": "GET, DELETE"})
        place = read_place(scope) or Place(field=PLACE_HEADER)
        reader = self._resumption.resume(_key(scope), "http", place)
        with reader:
            await while_connected(connection_of(scope), deliver(reader, scope, receive, send))

    async def cancel(self, request: Request) -> Response:
        """DELETE /v1/streams/ID: give the stream up."""
        self._resumption.cancel(_key(request.scope))
        return JsonResponse({"status": "ok"})


def _key(scope: Scope) -> StreamKey:
    id = stream_id(scope["path_params"]["stream_id"])
    return StreamKey(read_wishes(Headers(scope=scope).items()).get("tenant", ""), id)


def read_place(scope: Scope) -> Place | None:
    """Where the client says that it goes on; None: at the beginning.

    Raises:
        InvalidRequest: the header is none of our ids.
    """
    values = Headers(scope=scope).getlist(PLACE_HEADER)
    if not any(values):
        return None
    match = PLACE.fullmatch(values[0])
    if match is None or len(values) > 1:
        raise InvalidRequest(
            f"{PLACE_HEADER} must be the id of an event of the stream, such as 17:12.", PLACE_HEADER
        )
    offsets = tuple(map(int, match[2].split(".")))
    return Place(field=PLACE_HEADER, number=int(match[1]), offsets=offsets)


def open_reader(
    resumption: Resumption, scope: Scope, call: Call, body: Mapping[str, Any], tell: Tell
) -> Reader:
    """Begin the call's stream, or go on with it, as its id and the headers say.

    Raises:
        RequestError: neither can be done.
    """
    assert call.stream_id is not None
    [request] = call.requests
    key = StreamKey(request.tenant or "", call.stream_id)
    fingerprint = _fingerprint(scope["path"], body)
    place = read_place(scope)
    if place is None:
        reader = resumption.open(key, "http", fingerprint, request, tell)
    else:
        reader = resumption.resume(key, "http", place, fingerprint)
    if request.deadline_s is not None:
        reader.stream.flow.set_deadline(request.deadline_s)
    return reader


def _fingerprint(path: str, body: Mapping[str, Any]) -> bytes:
    """Equal for equal requests, however their JSON is written."""
    encoded = msgspec.json.encode(body, order="deterministic")
    return hashlib.sha256(path.encode() + b"\n" + encoded).digest()


async def tell(
    chunks: AsyncGenerator[list[ByEvent], None], num_choices: int, stream: ResumableStream
) -> None:
    """Tell the stream all chunks of an answer with a single prompt, and its end.

    Raises:
        RequestError: it failed before anything was told. Later the failure is told as an event.
    """
    told = _Told(num_choices, stream)
    try:
        async with aclosing(chunks):
            async for batch in chunks:
                told.add(batch)
    except RequestError as error:
        if not stream.log.num_told:
            raise
        told.fail(error)
    else:
        told.finish()


class _Told:
    """Encodes events, with their places as ids."""

    def __init__(self, num_choices: int, stream: ResumableStream) -> None:
        self._telling = Telling(num_choices, stream)

    def add(self, batch: list[ByEvent]) -> None:
        for event, encoded in batch:
            told = encoded.split(_END)[:-1]  # JSON has no line ends of its own
            for each in told[:-1]:
                self._put(each)
            if isinstance(event, Delta):
                self._telling.count(event.choice, len(event.token_ids))
            if told:
                self._put(told[-1])
        self._telling.tell()

    def finish(self) -> None:
        self._put(b"data: [DONE]")
        self._telling.tell()

    def fail(self, error: RequestError) -> None:
        self._put(sse.encoded(error_object(error)).removesuffix(_END))
        self._telling.tell()

    def _put(self, event: bytes) -> None:
        place = f"{self._telling.number}:{'.'.join(map(str, self._telling.offsets))}"
        self._telling.add(b"id: %b\n%b%b" % (place.encode(), event, _END))


async def deliver(reader: Reader, scope: Scope, receive: Receive, send: Send) -> None:
    """Write what the reader reads. A stream of which nothing is left is 204, and not read again.

    Raises:
        RequestError: the stream failed, and nothing has been written.
    """
    if reader.is_at_end:
        await Response(status_code=204)(scope, receive, send)
        return
    async with sse.opened(scope, send) as stream:
        async for entries in reader:
            await stream.send(b"".join(entry.data for entry in entries))
        await stream.close()
