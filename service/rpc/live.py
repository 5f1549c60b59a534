"""The requests of one stream: those that live, and the names of those that have ended."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field

from cadenza.service.control import Control
from cadenza.service.errors import InvalidRequest, Overloaded, RequestError, UnknownRequest
from cadenza.service.generation import Generation
from cadenza.service.resumable_stream import Reader
from cadenza.service.rpc.transcripts import Transcript

MAX_LIVE = 256  # requests at once on a stream
MAX_ENDED = 4 * MAX_LIVE  # names remembered: an end may pass an action on its way
MAX_REQUEST_ID_CHARS = 128


@dataclass(slots=True, eq=False)
class Live:
    """A request between its submit and its terminal event."""

    request_id: str
    control: Control = field(default_factory=Control)
    transcript: Transcript | None = None  # from when its prompt is known
    task: asyncio.Task[None] = field(init=False)  # set by the reader, at once
    generation: Generation | None = None  # once it is submitted
    reader: Reader | None = None  # of a stream that can be resumed
    is_over: bool = False  # it has had its terminal event

    def let_go(self, _: object) -> None:
        """Its task has ended."""
        if self.reader is not None:
            self.reader.close()


class LiveRequests:
    """A stream's live requests by name. Names of some that have ended are remembered."""

    def __init__(self) -> None:
        self._live: dict[str, Live] = {}
        self._ended: dict[str, None] = {}  # the latest last

    def __len__(self) -> int:
        return len(self._live)

    def __iter__(self) -> Iterator[Live]:
        return iter(self._live.values())

    def get(self, request_id: str) -> Live | None:
        return self._live.get(request_id)

    def has_ended(self, request_id: str) -> bool:
        """Whether a request of this name is known to have ended, and none lives."""
        return request_id in self._ended

    def add(self, live: Live) -> None:
        """A request begins, under a name that is not `why_unusable`."""
        self._ended.pop(live.request_id, None)
        self._live[live.request_id] = live

    def remove(self, live: Live) -> None:
        """A request has had its terminal event."""
        live.is_over = True
        del self._live[live.request_id]
        self.remember(live.request_id)

    def remember(self, request_id: str) -> None:
        """That a request of this name has ended."""
        self._ended.pop(request_id, None)
        self._ended[request_id] = None
        if len(self._ended) > MAX_ENDED:
            del self._ended[next(iter(self._ended))]

    def why_unusable(self, request_id: str) -> RequestError | None:
        """Why no request can be called so, if that is so."""
        if not request_id:
            return InvalidRequest("request_id is required", field="request_id")
        if len(request_id) > MAX_REQUEST_ID_CHARS:
            message = f"request_id is longer than {MAX_REQUEST_ID_CHARS} characters"
            return InvalidRequest(message, field="request_id")
        if request_id in self._live:
            message = f"request_id {request_id!r} is that of a live request on this stream"
            return InvalidRequest(message, field="request_id")
        return None

    def why_full(self) -> RequestError | None:
        """Why no request can begin now, if that is so."""
        if len(self._live) >= MAX_LIVE:
            return Overloaded(f"{MAX_LIVE} requests are live on this stream")
        return None


def unknown(request_id: str) -> RequestError:
    """An action is about a request that the stream never had, or has forgotten."""
    told = request_id[:MAX_REQUEST_ID_CHARS]
    error = UnknownRequest(f"no request of this stream is called {told!r}")
    error.field = "request_id"
    return error
