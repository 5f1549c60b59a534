"""Streams that outlive their connections, by the ids that their clients chose."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

import structlog

from cadenza.service.errors import (
    UNEXPECTED,
    GenerationFailed,
    InvalidRequest,
    OffsetGone,
    Overloaded,
    RequestError,
    StreamCancelled,
    StreamConflict,
    UnknownStream,
)
from cadenza.service.limits import ResumptionLimits
from cadenza.service.metrics import Metrics
from cadenza.service.request import GenerationRequest
from cadenza.service.resumable_stream import (
    Later,
    Protocols,
    Reader,
    ResumableStream,
    StreamKey,
    Tell,
    Timer,
)
from cadenza.service.stream_flow import StreamFlow, window_of
from cadenza.service.stream_log import Place, StreamLog

MAX_ID_CHARS = 128
STREAM_ID = re.compile(r"[A-Za-z0-9._~-]{1,128}")

_log = structlog.get_logger(__name__)


def stream_id(value: Any) -> str:
    """A client's name for a stream, checked.

    Raises:
        InvalidRequest: it is none.
    """
    if not isinstance(value, str) or not STREAM_ID.fullmatch(value):
        raise InvalidRequest(
            f"stream_id must be 1 to {MAX_ID_CHARS} letters, digits, '.', '_', '~' or '-'.",
            "stream_id",
        )
    return value


class Resumption:
    """All streams that can be resumed, running or ended a while ago. Belongs to one event loop.

    Memory is bounded: by `limits.max_bytes` of events for each stream, and by their number. Beside
    its events a stream keeps what its protocol puts into `memo`: over gRPC the ids of the prompt
    and of all outputs, four bytes each, at most a context for each choice. A stream that fails lets
    go of it.
    """

    def __init__(
        self,
        limits: ResumptionLimits,
        metrics: Metrics,
        later: Later | None = None,
        *,
        on_left: Callable[[], None] = lambda: None,
    ) -> None:
        """`later` calls after so many seconds; None: the running loop does.

        `on_left` is called when a stream that has ended is delivered, or is forgotten.
        """
        self._limits = limits
        self._metrics = metrics
        self._later = later or _by_loop
        self._on_left = on_left
        self._streams: dict[StreamKey, ResumableStream] = {}  # the oldest first
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def num_waiting(self) -> int:
        """Streams that nobody reads, though something is left or to come."""
        return sum(
            stream.reader is None and not stream.is_delivered for stream in self._streams.values()
        )

    @property
    def num_undelivered(self) -> int:
        """Streams that have ended, but not been read to their ends."""
        return sum(
            stream.log.is_ended and not stream.is_delivered for stream in self._streams.values()
        )

    def open(
        self,
        key: StreamKey,
        protocol: Protocols,
        fingerprint: bytes,
        request: GenerationRequest,
        tell: Tell,
    ) -> Reader:
        """Read a stream from its first event on: begin it if there is none of this id.

        `tell` generates: it passes events to `tell` of the stream, and returns at the end.

        Raises:
            StreamConflict: the id is that of another request.
            OffsetGone: the stream has gone on for too long to be read from its beginning.
            InvalidRequest: this server keeps no streams.
            Overloaded: there are too many streams.
        """
        if key in self._streams:
            return self.resume(key, protocol, Place(field="stream_id"), fingerprint)
        self._make_room()
        window = window_of(request, self._limits.max_bytes // 2)
        stream = ResumableStream(
            key,
            protocol,
            fingerprint,
            StreamFlow(window, request.credit),
            StreamLog(self._limits.max_bytes),
            on_delivered=self._on_left,
        )
        self._streams[key] = stream
        reader = self._attach(stream, 0)
        stream.task = asyncio.create_task(self._run(stream, tell))
        self._tasks.add(stream.task)
        stream.task.add_done_callback(self._tasks.discard)
        return reader

    def resume(
        self,
        key: StreamKey,
        protocol: Protocols,
        place: Place,
        fingerprint: bytes | None = None,
    ) -> Reader:
        """Go on reading a stream. Whoever reads it now is told that it is taken over.

        `fingerprint` is of the request that came along, if one did.

        Raises:
            UnknownStream: there is none of this id, or no longer.
            StreamConflict: the id is that of another request, or of another protocol's.
            InvalidRequest: the place is none in this stream.
            OffsetGone: what follows the place has been forgotten.
        """
        try:
            stream = self._find(key, protocol, fingerprint)
            number = stream.log.find(place)
        except RequestError as error:
            self._refused(error)
            raise
        self._metrics.streams_resumed[protocol] += 1
        return self._attach(stream, number)

    def cancel(self, key: StreamKey) -> None:
        """Give a stream up and forget it, whatever its protocol.

        Raises:
            UnknownStream: there is none of this id, or no longer.
        """
        if key not in self._streams:
            raise _unknown(key)
        self._drop(self._streams[key], StreamCancelled())

    def give_up(self, reader: Reader) -> None:
        """Give up the stream that this reader reads, unless another has taken it over."""
        if reader.stream.reader is reader:
            self._drop(reader.stream, StreamCancelled())

    def close(self) -> None:
        """Give all streams up."""
        for stream in [*self._streams.values()]:
            self._drop(stream, StreamCancelled())

    def _find(
        self, key: StreamKey, protocol: Protocols, fingerprint: bytes | None
    ) -> ResumableStream:
        stream = self._streams.get(key)
        if stream is None:
            raise _unknown(key)
        if stream.protocol != protocol:
            theirs = "gRPC" if stream.protocol == "grpc" else "HTTP"
            raise StreamConflict(f"stream_id {key.id} is that of a stream over {theirs}.")
        if fingerprint is not None and fingerprint != stream.fingerprint:
            raise StreamConflict(
                f"stream_id {key.id} is that of another request. A stream is resumed with the same "
                "request, and another request needs another stream_id."
            )
        return stream

    def _refused(self, error: RequestError) -> None:
        match error:
            case UnknownStream():
                reason = "unknown"
            case StreamConflict():
                reason = "conflict"
            case OffsetGone():
                reason = "gone"
            case _:
                reason = "offset"
        self._metrics.resumptions_refused[reason] += 1

    def _make_room(self) -> None:
        """Forget the oldest stream that was delivered, where there are too many."""
        if not self._limits.max_streams:
            raise InvalidRequest(
                "Resumption is switched off here: send the request without stream_id.", "stream_id"
            )
        if len(self._streams) < self._limits.max_streams:
            return
        streams = self._streams.values()
        over = next((each for each in streams if each.is_delivered and not each.reader), None)
        if over is None:
            raise Overloaded(f"{self._limits.max_streams} streams that can be resumed are kept.")
        self._forget(over)

    def _attach(self, stream: ResumableStream, number: int) -> Reader:
        previous = stream.reader
        reader = stream.reader = Reader(stream, number, self._let_go)
        if previous is not None:
            previous.wake()
        if stream.timer is not None:
            stream.timer.cancel()
            stream.timer = None
        stream.took(number)
        return reader

    def _let_go(self, reader: Reader) -> None:
        stream = reader.stream
        if stream.reader is not reader:
            return
        stream.reader = None
        if self._streams.get(stream.key) is stream:
            stream.timer = self._later(self._limits.grace_s, lambda: self._expire(stream))

    def _expire(self, stream: ResumableStream) -> None:
        if not stream.is_delivered:
            state = "ended" if stream.log.is_ended else "running"
            self._metrics.streams_expired[state] += 1
        self._drop(stream, StreamCancelled())

    def _drop(self, stream: ResumableStream, failure: RequestError) -> None:
        stream.end(failure)
        self._forget(stream)
        if stream.task is not None:
            stream.task.cancel()

    def _forget(self, stream: ResumableStream) -> None:
        if stream.timer is not None:
            stream.timer.cancel()
        if self._streams.get(stream.key) is stream:
            del self._streams[stream.key]
            self._on_left()

    async def _run(self, stream: ResumableStream, tell: Tell) -> None:
        try:
            await tell(stream)
            stream.end()
        except RequestError as error:
            stream.end(error)
        except Exception:
            _log.exception("stream_failed", protocol=stream.protocol)
            stream.end(GenerationFailed(UNEXPECTED, retryable=False))
        if stream.log.failure is not None and not stream.log.num_told:
            # Nothing is there to go on with: the same id may be tried again
            self._forget(stream)


def _unknown(key: StreamKey) -> UnknownStream:
    return UnknownStream(
        f"No stream {key.id} is known here, or no longer: send its request again without a place "
        "to go on from."
    )


def _by_loop(delay_s: float, call: Callable[[], None]) -> Timer:
    return asyncio.get_running_loop().call_later(delay_s, call)
