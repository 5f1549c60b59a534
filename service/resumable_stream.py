"""One stream that outlives its connections: what tells it, and who reads it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from cadenza.service.errors import RequestError, StreamTakenOver
from cadenza.service.stream_flow import StreamFlow
from cadenza.service.stream_log import Entry, StreamLog

Protocols: TypeAlias = Literal["http", "grpc"]


@dataclass(frozen=True, slots=True)
class StreamKey:
    """A stream's name: an id means something else to every tenant."""

    tenant: str
    id: str


class Timer(Protocol):
    """**Protocol:** what `Later` gives."""

    def cancel(self) -> None:
        """Do not call any more."""


Later: TypeAlias = Callable[[float, Callable[[], None]], Timer]


class ResumableStream:
    """One generation's events, told by its own task and read by one connection at a time."""

    def __init__(
        self,
        key: StreamKey,
        protocol: Protocols,
        fingerprint: bytes,
        flow: StreamFlow,
        log: StreamLog,
        on_delivered: Callable[[], None],
    ) -> None:
        """`Resumption` makes them. `fingerprint` is of the request that began it.

        `on_delivered` is called when it `is_delivered`, perhaps several times.
        """
        self.key = key
        self.protocol = protocol
        self.fingerprint = fingerprint
        self.flow = flow
        self.log = log
        self.reader: Reader | None = None
        self.task: asyncio.Task[None] | None = None
        self.timer: Timer | None = None
        self.memo: object = None  # what else its protocol keeps of it
        self._on_delivered = on_delivered
        self._is_failure_told = False
        self._num_tokens = 0  # that have come, in events or not yet

    @property
    def is_delivered(self) -> bool:
        """Whether it has ended, and a connection has taken all that there was."""
        log = self.log
        is_told = log.failure is None or self._is_failure_told
        return log.is_ended and log.num_read == log.num_told and is_told

    def tell(self, entries: Sequence[Entry]) -> None:
        """Further events, in order."""
        for data, offsets in entries:
            self.log.append(data, offsets)
        self._wake()

    def count(self, num_tokens: int) -> None:
        """So many tokens have come by now, with events or without."""
        self._num_tokens = num_tokens
        self.flow.let(num_tokens, self.log.num_unread_tokens)

    def end(self, failure: RequestError | None = None) -> None:
        """Nothing more comes. Nobody asks for the memo of what failed."""
        self.log.end(failure)
        if self.log.failure is not None:
            self.memo = None
        self._wake()

    def took(self, number: int) -> None:
        """Its reader has taken all events up to this number."""
        self.log.read(number)
        self.flow.let(self._num_tokens, self.log.num_unread_tokens)
        self._note()

    def told_failure(self) -> None:
        """Its reader has learnt of the failure."""
        self._is_failure_told = True
        self._note()

    def _note(self) -> None:
        if self.is_delivered:
            self._on_delivered()

    def _wake(self) -> None:
        if self.reader is not None:
            self.reader.wake()


class Reader:
    """One connection that reads a stream, batch after batch, until it is closed.

    A batch counts as taken when the next one is asked for. As a context it is closed on exit.
    """

    def __init__(
        self, stream: ResumableStream, number: int, let_go: Callable[[Reader], None]
    ) -> None:
        self.stream = stream
        self._number = number  # of the last event that was given out
        self._let_go = let_go
        self._woken = asyncio.Event()

    @property
    def is_at_end(self) -> bool:
        """Whether nothing is left to tell."""
        log = self.stream.log
        return log.is_ended and log.failure is None and self._number == log.num_told

    def wake(self) -> None:
        """There may be something new."""
        self._woken.set()

    def close(self) -> None:
        """Let go of the stream, which then waits for its grace. Idempotent."""
        self._let_go(self)

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __aiter__(self) -> Reader:
        return self

    async def __anext__(self) -> Sequence[Entry]:
        """The next events, never none.

        Raises:
            StreamTakenOver: another connection reads the stream now.
            RequestError: the stream failed, after all that came before.
        """
        stream = self.stream
        while True:
            if stream.reader is not self:
                raise StreamTakenOver
            stream.took(self._number)
            if entries := stream.log.after(self._number):
                self._number += len(entries)
                return entries
            if stream.log.is_ended:
                stream.told_failure()
                if stream.log.failure is not None:
                    raise stream.log.failure
                raise StopAsyncIteration
            self._woken.clear()
            await self._woken.wait()


Tell: TypeAlias = Callable[[ResumableStream], Awaitable[None]]
