"""gRPC calls without gRPC: the service's own servicer, and clients in the same thread."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import grpc

from cadenza.service.generator import Generator
from cadenza.service.rpc.servicer import GenerationServicer
from cadenza.v1 import generation_pb2 as pb

from .loop import SeededLoop

STALL_S = 4.0
_WINDOW = 2  # messages on their way to a client that it has not read
_LONG_S = 0.2


class Call:
    """One call: the servicer's context on one side, what the client sees on the other."""

    def __init__(self, loop: SeededLoop, timeout_s: float | None = None) -> None:
        self.status: grpc.StatusCode | None = None  # once the client knows that it has ended
        self.message = ""
        self.is_cut = False
        self.task: asyncio.Task[None] | None = None
        self._loop = loop
        self._timeout_s = timeout_s
        self._to_client: deque[bytes | None] = deque()  # None: the end
        self._num_arrived = 0  # of these, at the client's
        self._to_server: deque[bytes | None] = deque()
        self._num_sent = 0  # of these, at the server's
        self._end = (grpc.StatusCode.UNKNOWN, "")
        self._changed: list[asyncio.Future[None]] = []

    # grpc.aio.ServicerContext

    async def write(self, message: bytes) -> None:
        self._to_client.append(message)
        self._loop.call_later(self._delay_s(), self._arrive)
        while len(self._to_client) > _WINDOW:
            await self._change()

    async def abort(self, code: grpc.StatusCode, details: str = "", metadata: Any = ()) -> None:
        self._end = code, details
        raise grpc.aio.AbortError

    def time_remaining(self) -> float | None:
        return self._timeout_s

    def invocation_metadata(self) -> Sequence[tuple[str, str]]:
        return ()

    async def requests(self) -> AsyncIterator[bytes]:
        while True:
            while not self._num_sent:
                await self._change()
            self._num_sent -= 1
            message = self._to_server.popleft()
            if message is None:
                return
            yield message

    # the server's side of it

    async def serve(self, method: Callable[[], Awaitable[None]]) -> None:
        self.task = asyncio.current_task()
        timer = None
        if self._timeout_s is not None:
            timer = self._loop.call_later(self._timeout_s, self._pass_deadline)
        try:
            await method()
            self._end = grpc.StatusCode.OK, ""
        except grpc.aio.AbortError:
            pass
        except asyncio.CancelledError:
            if self._end[0] is grpc.StatusCode.UNKNOWN:
                self._end = grpc.StatusCode.CANCELLED, "cancelled"
        finally:
            if timer is not None:
                timer.cancel()
            self.finish()

    def refuse(self) -> None:
        """Nobody serves any more."""
        self._end = grpc.StatusCode.UNAVAILABLE, "no connection"
        self.finish()

    def finish(self) -> None:
        self._to_client.append(None)
        self._loop.call_later(self._delay_s(), self._arrive)

    def _pass_deadline(self) -> None:
        self._end = grpc.StatusCode.DEADLINE_EXCEEDED, "too late"
        if self.task is not None:
            self.task.cancel()

    @property
    def is_served(self) -> bool:
        """Whether the server is still at it, which a client does not see."""
        return self.task is not None and not self.task.done()

    # the client's side

    async def read(self) -> Sequence[pb.Event] | None:
        """The next message's events; None: there is none, and `status` says why."""
        while not self._num_arrived:
            await self._change()
        self._num_arrived -= 1
        message = self._to_client.popleft()
        self._note()
        if message is None:
            self.status, self.message = self._end
            return None
        return pb.SessionResponse.FromString(message).events

    def has_unread(self, kind: str) -> bool:
        """Whether an event of this kind has been written that the client has not read."""
        messages = [pb.SessionResponse.FromString(each) for each in self._to_client if each]
        return any(event.HasField(kind) for each in messages for event in each.events)

    def send(self, request: pb.SessionRequest | None) -> None:
        """None: nothing more is sent."""
        self._to_server.append(None if request is None else request.SerializeToString())
        self._loop.call_later(self._delay_s(), self._reach_server)

    def cut(self) -> None:
        """The connection is gone, with what was on its way."""
        self.is_cut = True
        if self.task is not None:
            self.task.cancel()

    def _arrive(self) -> None:
        self._num_arrived += 1
        self._note()

    def _reach_server(self) -> None:
        self._num_sent += 1
        self._note()

    async def _change(self) -> None:
        future = self._loop.create_future()
        self._changed.append(future)
        await future

    def _note(self) -> None:
        changed, self._changed = self._changed, []
        for future in changed:
            if not future.done():
                future.set_result(None)

    def _delay_s(self) -> float:
        dice = self._loop.chance.random()
        return _LONG_S * dice if dice > 0.97 else 0.001 * dice


class MemoryServer:
    """Stands for `GrpcServer`, and for `HttpServer` where that is only started and stopped."""

    services: Sequence[str] = ()
    num_connections = 0

    def __init__(self, loop: SeededLoop, generator: Generator) -> None:
        self.servicer = GenerationServicer(generator, stall_s=STALL_S)
        self.generator = generator
        self.is_ready = False
        self._loop = loop
        self._is_open = True
        self._running: dict[asyncio.Task[None], None] = {}

    @property
    def num_calls(self) -> int:
        """Calls that have not ended."""
        return len(self._running)

    async def start(self) -> int:
        return 1

    async def set_ready(self, is_ready: bool) -> None:
        self.is_ready = is_ready

    async def stop(self, grace_s: float) -> None:
        self.servicer.drain()
        await self.servicer.join(grace_s)
        self._is_open = False
        for task in tuple(self._running):
            task.cancel()
        await self.servicer.join()

    def generate(self, request: pb.GenerateRequest, timeout_s: float | None = None) -> Call:
        call = Call(self._loop, timeout_s)
        context: Any = call
        self._serve(call, lambda: self.servicer.generate(request.SerializeToString(), context))
        return call

    def session(self) -> Call:
        call = Call(self._loop)
        context: Any = call
        self._serve(call, lambda: self.servicer.session(call.requests(), context))
        return call

    def _serve(self, call: Call, method: Callable[[], Awaitable[None]]) -> None:
        if not self._is_open:
            call.refuse()
            return
        task = self._loop.create_task(call.serve(method))
        call.task = task
        self._running[task] = None
        task.add_done_callback(self._running.pop)


class NoServer:
    """Stands for `HttpServer`."""

    num_connections = 0

    def __init__(self, *_: object, **__: object) -> None:
        self._stopped = asyncio.Event()

    async def serve(self) -> None:
        await self._stopped.wait()

    def stop(self) -> None:
        self._stopped.set()
