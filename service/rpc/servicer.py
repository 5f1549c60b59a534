"""The generation service as gRPC calls it: the boundary where exceptions become statuses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from typing import Any, TypeAlias

import grpc
import structlog

from cadenza.service.errors import RequestError
from cadenza.service.rpc import session, status
from cadenza.service.rpc.contract import Generator
from cadenza.service.rpc.generate import generate
from cadenza.v1 import generation_pb2 as pb
from cadenza.v1.generation_pb2_grpc import GenerationServiceServicer

Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]

_log = structlog.get_logger(__name__)


class GenerationServicer(GenerationServiceServicer):
    """Runs the calls, and knows which are still running.

    The methods are coroutines that write, not async generators: gRPC leaves a cancelled generator
    to the garbage collector, and the generation's cancel with it.
    """

    def __init__(self, generator: Generator) -> None:
        self._generator = generator
        self._calls: set[asyncio.Task[Any]] = set()
        self._sessions: set[session.Session] = set()
        self._is_draining = False

    async def Generate(  # type: ignore[override]
        self, request: pb.GenerateRequest, context: Context
    ) -> None:
        await self._guard(context, generate(self._generator, request, context.write))

    async def Session(  # type: ignore[override]
        self, request_iterator: AsyncIterator[pb.SessionRequest], context: Context
    ) -> None:
        stream = session.Session(self._generator, request_iterator, context.write)
        await self._guard(context, self._run(stream))

    def drain(self) -> None:
        """Take no new requests on open sessions; they end when their live requests have."""
        self._is_draining = True
        for stream in self._sessions:
            stream.drain()

    async def join(self, timeout_s: float | None = None) -> None:
        """Wait until every call has ended and cleaned up, or for `timeout_s`."""
        if self._calls:
            await asyncio.wait(self._calls, timeout=timeout_s)

    async def _run(self, stream: session.Session) -> None:
        self._sessions.add(stream)
        try:
            if self._is_draining:
                stream.drain()
            await stream.run()
        finally:
            self._sessions.discard(stream)

    async def _guard(self, context: Context, call: Awaitable[None]) -> None:
        """Run `call`; tell what it raises as a status. Cancellation passes through."""
        task = asyncio.current_task()
        assert task is not None
        self._calls.add(task)
        try:
            await call
        except RequestError as error:
            await status.abort(context, error)
        except Exception:
            _log.exception("call_failed")
            await status.abort(context, status.internal_error())
        finally:
            self._calls.discard(task)
