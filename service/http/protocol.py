"""uvicorn's httptools protocol, with the bounds on clients that uvicorn lacks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from cadenza.service.http.connection import ConnectionLimits
from cadenza.service.http.errors import plain_error

MAX_HEAD_BYTES = 64 << 10
# That a connection holds before its stream stalls, behind what the kernel holds. With uvloop each
# token's write that waits takes 330 bytes besides: at 32 KiB a stalled stream cost 160 KiB, at 4 45
UNSENT_BYTES = 2 << 10


class BoundedProtocol(HttpToolsProtocol):
    """Refuses a request whose line and headers exceed MAX_HEAD_BYTES (and at most one read more).

    Without it the parser gathers a header for as long as the client sends one. A head must be whole
    within `head_s`; beyond `max_connections` a connection is refused. A connection that is to close
    is aborted `send_s` later, since a transport waits for ever for a client to read. Implements
    `Connection`.
    """

    _head_bytes = 0  # received in a row without a head or a body becoming whole
    _in_head = True
    _moved_on = False
    _answering: RequestResponseCycle | None = None  # uvicorn keeps only the last one parsed
    _head_due: asyncio.TimerHandle | None = None
    _end: asyncio.TimerHandle | None = None  # of a connection that is to close
    _takes_more = False  # nothing has happened since that was so
    _on_flow: Callable[[bool], None] | None = None
    is_lost = False

    def __init__(self, *args: Any, limits: ConnectionLimits, **options: Any) -> None:
        super().__init__(*args, **options)
        self.limits = limits
        self._on_loss: set[Callable[[], None]] = set()

    # Connection

    @property
    def write_waits(self) -> bool:
        return bool(self.flow.write_paused)

    def takes_more(self) -> bool:
        if not self._takes_more:  # asked for every token, and nearly always so
            self._takes_more = self._may_take_more()
        return self._takes_more

    def _may_take_more(self) -> bool:
        answer = self._answering
        return (
            answer is not None
            and answer.chunked_encoding is True
            and not (answer.response_complete or answer.disconnected or self.flow.write_paused)
        )

    def write_more(self, data: bytes) -> None:
        self.transport.write(b"%x\r\n%b\r\n" % (len(data), data))

    def watch_flow(self, callback: Callable[[bool], None] | None) -> None:
        self._on_flow = callback
        if callback is not None and self.flow.write_paused:
            callback(True)

    def watch_loss(self, callback: Callable[[], None]) -> None:
        self._on_loss.add(callback)
        self.flow.resume_reading()  # after a large body it has paused, and would notice nothing

    def unwatch_loss(self, callback: Callable[[], None]) -> None:
        self._on_loss.discard(callback)

    def abort(self) -> None:
        """Drop the connection; uvicorn then misses nothing of an answer that was cut."""
        self._takes_more = False
        if self._answering is not None:
            self._answering.disconnected = True
        self.transport.abort()

    def abort_later(self) -> None:
        if self._end is None and not self.is_lost:
            self._end = self.loop.call_later(self.limits.send_s, self.abort)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=UNSENT_BYTES)
        if len(self.connections) > self.limits.max_connections:
            self._refuse()
        else:
            self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the request being answered, too, where others are queued behind it."""
        super().connection_lost(exc)
        self.is_lost, self._takes_more = True, False
        for timer in (self._head_due, self._end):
            if timer is not None:
                timer.cancel()
        if self._answering is not None and not self._answering.response_complete:
            self._answering.disconnected = True
            self._answering.message_event.set()
        # Requests lead back here, by their scope: none of this shall wait for the garbage collector
        self._answering = self.cycle = self.scope = None  # type: ignore[assignment]
        self._on_flow = None
        for callback in [*self._on_loss]:
            callback()

    def data_received(self, data: bytes) -> None:
        """Parse, then count what an unfinished head took."""
        self._moved_on = False
        super().data_received(data)
        if self._moved_on or not self._in_head:
            self._head_bytes = 0
        else:
            self._count_head(len(data))
        if not self._is_answering:
            self._expect_head()  # uvicorn has just given up its own timer

    def pause_writing(self) -> None:
        self._takes_more = False
        super().pause_writing()
        if self._on_flow is not None:
            self._on_flow(True)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._on_flow is not None:
            self._on_flow(False)

    def _count_head(self, num_bytes: int) -> None:
        self._head_bytes += num_bytes
        if self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("The request's headers are too large.")

    # httptools

    def on_message_begin(self) -> None:
        """A request begins: let the application reach its connection."""
        super().on_message_begin()
        self.scope["state"]["connection"] = self

    def on_headers_complete(self) -> None:
        """A head is whole: what follows is its body."""
        self._in_head, self._moved_on = False, True
        if self._head_due is not None:
            self._head_due.cancel()
            self._head_due = None
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Drop what nobody reads any more: too much of it would pause reading for good."""
        if not (self._on_loss and self.cycle is self._answering):
            super().on_body(body)

    def on_message_complete(self) -> None:
        """A request is whole: what follows is the next one's head."""
        self._in_head, self._moved_on = True, True
        super().on_message_complete()

    # uvicorn

    def send_400_response(self, msg: str) -> None:
        super().send_400_response(msg)
        self.abort_later()

    def on_response_complete(self) -> None:
        self._takes_more = False
        super().on_response_complete()
        if self.transport.is_closing():
            self.abort_later()

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection, at once where the client has not read its last answer."""
        if self.transport.get_write_buffer_size() > 0:
            self.abort()
        else:
            super().timeout_keep_alive_handler()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    @property
    def _is_answering(self) -> bool:
        return self._answering is not None and not self._answering.response_complete

    def _expect_head(self) -> None:
        """Abort unless a head is whole in time. What is expected already keeps its time."""
        if self._head_due is None:
            self._head_due = self.loop.call_later(self.limits.head_s, self.abort)

    def _refuse(self) -> None:
        """Answer before any request: the client is told, and nothing of it is parsed."""
        body = plain_error(503, "There are too many connections.").body
        head = (
            "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nretry-after: 1\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + bytes(body))
        self.transport.close()
        self.abort_later()
