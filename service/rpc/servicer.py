"""The generation service as gRPC calls it: the boundary where exceptions become statuses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any, TypeAlias, TypeVar

import grpc
import structlog
from google.protobuf.message import DecodeError, Message

from cadenza.service import tracing
from cadenza.service.errors import EngineUnavailable, InvalidRequest, RequestError
from cadenza.service.generator import Generator
from cadenza.service.rpc import status
from cadenza.service.rpc.codec import field_path
from cadenza.service.rpc.generate import generate
from cadenza.service.rpc.session import Session
from cadenza.service.rpc.transcripts import TranscriptBudget
from cadenza.v1 import generation_pb2 as pb

SERVICE: str = pb.DESCRIPTOR.services_by_name["GenerationService"].full_name

STALL_S = 60.0  # how long a message may wait behind a full window

Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]
Write: TypeAlias = Callable[[bytes], Awaitable[None]]
MessageT = TypeVar("MessageT", bound=Message)

_log = structlog.get_logger(__name__)


class GenerationServicer:
    """Runs the calls, and knows which are still running.

    The calls are coroutines that write, not async generators: gRPC leaves a cancelled generator to
    the garbage collector, and the generation's cancel with it. They take bytes, as gRPC answers
    bytes that are no message with UNKNOWN and a traceback in the log, and write bytes, as responses
    are joined of events that are encoded already.
    """

    def __init__(self, generator: Generator, *, stall_s: float = STALL_S) -> None:
        """Serve `generator`. A call is cancelled once a single write has taken `stall_s`."""
        self._generator = generator
        self._stall_s = stall_s
        self._calls: set[asyncio.Task[Any]] = set()
        self._sessions: set[Session] = set()
        self._transcripts = TranscriptBudget()  # of all sessions
        self._is_draining = False

    def handlers(self) -> grpc.GenericRpcHandler:
        """What a server needs to route the service's methods here."""
        methods: dict[str, grpc.RpcMethodHandler[bytes, Any]] = {
            "Generate": grpc.unary_stream_rpc_method_handler(self.generate),
            "Session": grpc.stream_stream_rpc_method_handler(self.session),
        }
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    async def generate(self, encoded: bytes, context: Context) -> None:
        """The Generate call."""

        writer = _Writer(context, self._stall_s)

        async def call() -> None:
            request = decode(pb.GenerateRequest, encoded)
            left_s = context.time_remaining()
            await generate(self._generator, request, writer.write, time_left_s=left_s)

        await self._guard(context, writer, call)

    async def session(self, encoded: AsyncIterator[bytes], context: Context) -> None:
        """The Session call."""
        writer = _Writer(context, self._stall_s)
        stream = Session(self._generator, _requests(encoded), writer.write, self._transcripts)

        async def call() -> None:
            self._sessions.add(stream)
            try:
                await stream.run()
            finally:
                self._sessions.discard(stream)

        await self._guard(context, writer, call)

    async def run(
        self, context: Context, call: Callable[[Write], Awaitable[None]], path: status.FieldPath
    ) -> None:
        """Run another service's call, which ends as these do. `path`: where its fields stand."""
        writer = _Writer(context, self._stall_s)
        await self._guard(context, writer, partial(call, writer.write), path)

    def drain(self) -> None:
        """Refuse new calls, and new requests on open sessions, which end with their live ones."""
        self._is_draining = True
        for stream in self._sessions:
            stream.drain()

    async def join(self, timeout_s: float | None = None) -> None:
        """Wait for `timeout_s` until every call has cleaned up and its status is sent."""
        if self._calls:
            await asyncio.wait(self._calls, timeout=timeout_s)

    async def _guard(
        self,
        context: Context,
        writer: _Writer,
        call: Callable[[], Awaitable[None]],
        path: status.FieldPath = field_path,
    ) -> None:
        """Run `call`; tell what it raises as a status. Its client's cancellation passes through."""
        task = asyncio.current_task()
        assert task is not None
        tracing.remember_caller(
            (name, value)
            for name, value in context.invocation_metadata() or ()
            if isinstance(value, str)
        )
        self._calls.add(task)
        # Not in a finally: the task has the status yet to send when this returns.
        task.add_done_callback(self._calls.discard)
        try:
            if self._is_draining:
                raise EngineUnavailable("the server is stopping")
            try:
                await call()
            finally:
                await writer.begun()
        except asyncio.CancelledError:
            if not writer.is_stalled:
                raise
            task.uncancel()
            _log.warning("client_not_reading", stall_s=self._stall_s)
            # gRPC leaves a call without a status open for ever. The client is told once it reads.
            await status.end(context, grpc.StatusCode.CANCELLED, "the client does not read")
        except RequestError as error:
            await status.abort(context, error, path)
        except grpc.aio.InternalError as error:
            # A write failed: the client is gone, and gRPC was about to cancel this task.
            raise asyncio.CancelledError from error
        except Exception:
            _log.exception("call_failed")
            await status.abort(context, status.internal_error())
        finally:
            writer.close()


class _Writer:
    """Writes for the running call, and cancels it when its client has ceased to read.

    A write ends when the transport has taken the message, for which a full window must open. The
    keepalive does not notice such a client: its network goes on answering.
    """

    def __init__(self, context: Context, stall_s: float) -> None:
        self.is_stalled = False  # a write has taken `stall_s`
        self._context = context
        self._stall_s = stall_s
        self._call = asyncio.current_task()
        self._first: asyncio.Future[None] | None = None  # write
        self._loop = asyncio.get_running_loop()
        self._since_s: float | None = None  # when the write began that goes on; None: none does
        self._watchdog = self._loop.call_later(stall_s, self._watch)

    async def write(self, message: bytes) -> None:
        self._since_s = self._loop.time()
        try:
            if self._first is None:
                self._first = asyncio.ensure_future(self._context.write(message))
                self._first.add_done_callback(_look)
                await asyncio.shield(self._first)
            else:
                await self._context.write(message)
        finally:
            self._since_s = None

    def close(self) -> None:
        """Nothing is written any more."""
        self._watchdog.cancel()

    def _watch(self) -> None:
        # One timer that looks again, rather than one for each of the writes
        since_s = self._loop.time() if self._since_s is None else self._since_s
        left_s = since_s + self._stall_s - self._loop.time()
        if left_s > 0:
            self._watchdog = self._loop.call_later(left_s, self._watch)
        else:
            self._stall()

    async def begun(self) -> None:
        """Wait until no first write is under way; cancelled with the call.

        The call's initial metadata goes with it, and until that is known to be sent gRPC would send
        it again with a status: which fails, and leaves the call open for ever. So this takes as
        long as a status behind any other write would: until the client reads, or is gone, or the
        server stops. Nothing but that write is left of the call by then.
        """
        if self._first is not None and not self._first.done():
            await asyncio.wait([self._first])

    def _stall(self) -> None:
        assert self._call is not None
        self.is_stalled = True
        self._call.cancel()


def _look(write: asyncio.Future[None]) -> None:
    """At how a write has ended that nobody may be waiting for."""
    if not write.cancelled():
        write.exception()


async def _requests(encoded: AsyncIterator[bytes]) -> AsyncIterator[pb.SessionRequest]:
    async for data in encoded:
        yield decode(pb.SessionRequest, data)


def decode(kind: type[MessageT], data: bytes) -> MessageT:
    """The message that the bytes are. Raises InvalidRequest if they are none."""
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise InvalidRequest(f"the bytes are not a {kind.DESCRIPTOR.full_name}") from error
