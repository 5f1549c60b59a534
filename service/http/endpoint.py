"""POST /v1/chat/completions and /v1/completions: one course of events, two dialects."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, aclosing, contextmanager
from dataclasses import replace
from functools import partial

from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from cadenza.service.control import Control
from cadenza.service.errors import InvalidRequest
from cadenza.service.generation import Generation
from cadenza.service.generator import Generator
from cadenza.service.http import sse
from cadenza.service.http.answer import Answer
from cadenza.service.http.body import read_json
from cadenza.service.http.call import Call
from cadenza.service.http.connection import Connection, connection_of
from cadenza.service.http.dialect import Dialect
from cadenza.service.http.disconnect import while_connected
from cadenza.service.http.errors import JsonResponse, renamed
from cadenza.service.http.resumable import deliver, open_reader, tell
from cadenza.service.http.sse import EventStream
from cadenza.service.request import GenerationRequest
from cadenza.service.resumable_stream import ResumableStream
from cadenza.service.wishes import read_wishes


class Endpoint:
    """An ASGI application. What fails before the first output is raised, as `RequestError`."""

    def __init__(self, generator: Generator, dialect: Dialect) -> None:
        self._generator = generator
        self._dialect = dialect

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        wishes = read_wishes(Headers(scope=scope).items())
        body = await read_json(scope, receive)
        call = self._dialect.parse(body).with_wishes(wishes)
        self._check_size(call)
        if call.stream_id is not None:
            reader = open_reader(
                self._generator.resumption, scope, call, body, partial(self._tell, call)
            )
            with reader:
                await while_connected(connection_of(scope), deliver(reader, scope, receive, send))
            return
        await while_connected(connection_of(scope), self._answer(call, scope, receive, send))

    def _check_size(self, call: Call) -> None:
        n = call.requests[0].n
        limits = self._generator.limits
        if type(n) is not int or n > limits.max_choices:
            n = 1  # wrong values are left to `Generator.submit`
        rows = len(call.requests) * n
        if len(call.requests) > 1 and rows > limits.max_queued:
            raise InvalidRequest(f"{rows} choices in one call are too many.", "n")

    async def _answer(self, call: Call, scope: Scope, receive: Receive, send: Send) -> None:
        async with AsyncExitStack() as running:
            generations = await self._submit(call)
            for generation in generations:
                await running.enter_async_context(generation)
            answer = Answer(self._dialect, call, generations)
            if call.stream:
                async with sse.opened(scope, send) as stream:
                    with _stalling(generations, stream.connection):
                        await _stream(answer, stream)
            else:
                await JsonResponse(await answer.whole())(scope, receive, send)

    async def _tell(self, call: Call, stream: ResumableStream) -> None:
        """Generate for a stream that can be resumed, whoever reads it."""
        [request] = call.requests
        request = replace(request, credit=stream.flow.first)
        async with await self._submit_controlled(call, request, stream.flow) as generation:
            answer = Answer(self._dialect, call, [generation])
            await tell(answer.told_by_event(), generation.num_choices, stream)

    async def _submit_controlled(
        self, call: Call, request: GenerationRequest, control: Control
    ) -> Generation:
        try:
            return await self._generator.submit(request, control)
        except InvalidRequest as error:
            raise renamed(error, call.names) from error

    async def _submit(self, call: Call) -> list[Generation]:
        try:
            return await self._generator.submit_all(call.requests)
        except InvalidRequest as error:
            raise renamed(error, call.names) from error


@contextmanager
def _stalling(generations: Sequence[Generation], connection: Connection) -> Iterator[None]:
    """While the client takes nothing, nothing is generated for it, and not for longer than so."""
    loop = asyncio.get_running_loop()
    end: asyncio.TimerHandle | None = None

    def on_flow(is_stalled: bool) -> None:
        nonlocal end
        for generation in generations:
            generation.stall(is_stalled=is_stalled)
        if end is not None:
            end.cancel()
        # Nothing more is to be sent meanwhile, so that no write is there to take too long
        end = loop.call_later(connection.limits.send_s, connection.abort) if is_stalled else None

    connection.watch_flow(on_flow)
    try:
        yield
    finally:
        connection.watch_flow(None)
        if end is not None:
            end.cancel()


async def _stream(answer: Answer, stream: EventStream) -> None:
    answer.tap(stream)
    async with aclosing(answer.chunks()) as chunks:
        async for events in chunks:
            await stream.send(events)
    await stream.finish()
