"""The Session call: many requests on one stream, each with a life of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import TypeAlias

import structlog

from cadenza.service.errors import (
    EngineUnavailable,
    InvalidRequest,
    RequestError,
)
from cadenza.service.generator import Generator
from cadenza.service.request import GenerationRequest
from cadenza.service.rpc import status, wire_format
from cadenza.service.rpc.live import MAX_LIVE, Live, LiveRequests, unknown
from cadenza.service.rpc.outbox import Outbox, Write
from cadenza.service.rpc.relay import relay
from cadenza.service.rpc.resumable import is_resumable, open_submitted, read, transcript_behind
from cadenza.service.rpc.submits import to_deadline_s, to_submitted
from cadenza.service.rpc.taps import Taps
from cadenza.service.rpc.transcripts import TranscriptBudget, Transcripts, transcript_of
from cadenza.v1 import generation_pb2 as pb

# Messages about running requests that one stream has under way to the engine. A client may grant
# credit to every request after every step, twice; the engine works off so many in 1 ms.
MAX_UNHANDLED = 2 * MAX_LIVE
UNLIMITED = 1 << 32  # tokens; no context has so many
# Requests stop being read while this much waits for the client. At 50 bytes a token it holds 20
# steps of 256 requests: enough to never stall a client that reads, little for one that does not.
TOKENS_LIMIT_BYTES = 256 * 1024
# Of streams that can be resumed little waits here: it counts as read, and may be forgotten.
RESUMABLE_LIMIT_BYTES = TOKENS_LIMIT_BYTES // 8
# Answers to the client's own actions may go further, so that a cancel passes full token buffers.
REPLIES_LIMIT_BYTES = 2 * TOKENS_LIMIT_BYTES

_log = structlog.get_logger(__name__)


_Read: TypeAlias = Callable[[Live], GenerationRequest | None]


class Session:
    """Serves one stream: a reader, a writer, and a task for each live request.

    Requests fail alone: only the stream's own end, or `write` raising, ends `run` early. Each
    request puts exactly one terminal event; the reader puts it for the requests that it cancels or
    refuses, the request's own task for all others.
    """

    def __init__(
        self,
        generator: Generator,
        requests: AsyncIterator[pb.SessionRequest],
        write: Write,
        budget: TranscriptBudget | None = None,
    ) -> None:
        """`budget` bounds what the streams of a server keep together; None: this one alone."""
        self._generator = generator
        self._requests = requests
        self._write = write
        self._outbox = Outbox(TOKENS_LIMIT_BYTES)
        self._taps = Taps(self._outbox)
        self._live = LiveRequests()
        self._num_unhandled = 0  # messages that the engine may not have handled
        self._transcripts = Transcripts(budget=budget)
        self._reader: asyncio.Task[None] | None = None
        self._is_draining = False

    async def run(self) -> None:
        """Serve until the client closes its side and every request has ended.

        Raises EngineUnavailable if a drain came first. Either way all terminal events have been
        written. Raises at once what `requests` or `write` raises. When it raises or is cancelled,
        every generation has been cancelled.
        """
        try:
            await self._run_tasks()
        except ExceptionGroup as group:
            raise _first(group) from group
        finally:
            self._transcripts.close()
        if self._reader is not None and self._reader.cancelled():
            raise _stopping()

    def drain(self) -> None:
        """Refuse further requests; `run` returns when the live ones have ended. Idempotent."""
        self._is_draining = True
        self._stop_reading_when_drained()

    async def _run_tasks(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._outbox.write_to(self._write))
            async with asyncio.TaskGroup() as requests:
                self._reader = requests.create_task(self._read(requests))
                self._stop_reading_when_drained()
            self._outbox.close()

    async def _read(self, tasks: asyncio.TaskGroup) -> None:
        async for request in self._requests:
            self._act(request, tasks)
            await self._outbox.room(REPLIES_LIMIT_BYTES)
            if self._num_unhandled >= MAX_UNHANDLED:
                await self._generator.caught_up()
                self._num_unhandled = 0
        for live in self._live:  # else they would wait for credit that cannot come
            # To streams that can be resumed another Session may grant it. A client that is gone
            # looks at first like one that has half-closed, and may be about to open one.
            if live.reader is None:
                live.control.grant(UNLIMITED)

    def _act(self, request: pb.SessionRequest, tasks: asyncio.TaskGroup) -> None:
        match request.WhichOneof("action"):
            case "submit":
                self._submit(request.submit, tasks)
            case "append":
                self._append(request.append, tasks)
            case "cancel":
                self._cancel(request.cancel)
            case "reprioritise":
                self._reprioritise(request.reprioritise)
            case "set_deadline":
                self._set_deadline(request.set_deadline)
            case "credit":
                self._grant(request.credit)
            case _:
                self._refuse("", InvalidRequest("this server does not know the action"))

    def _submit(self, submit: pb.Submit, tasks: asyncio.TaskGroup) -> None:
        self._open(submit.request_id, partial(self._submitted, submit), tasks)

    def _append(self, append: pb.Append, tasks: asyncio.TaskGroup) -> None:
        self._open(append.request_id, lambda _: self._appended(append), tasks)

    def _open(self, request_id: str, read: _Read, tasks: asyncio.TaskGroup) -> None:
        if error := self._live.why_unusable(request_id):
            # Under the id of a live request this would read as that request's end.
            self._refuse("", error)
        elif error := self._why_refused():
            self._refuse(request_id, error)
        else:
            self._begin(request_id, read, tasks)

    def _begin(self, request_id: str, read: _Read, tasks: asyncio.TaskGroup) -> None:
        live = Live(request_id)
        try:
            request = read(live)
        except RequestError as error:
            self._refuse(request_id, error)
        else:
            self._live.add(live)
            live.task = tasks.create_task(self._serve(live, request))
            if live.reader is not None:
                # Not in the task, which may be cancelled before it has begun
                live.task.add_done_callback(live.let_go)

    def _submitted(self, submit: pb.Submit, live: Live) -> GenerationRequest | None:
        """What a client wants generated; None: it is read from a stream that can be resumed."""
        if not is_resumable(submit):
            return to_submitted(submit)
        deadline_s = to_deadline_s(submit)
        parse = partial(to_submitted, submit)
        live.reader = open_submitted(self._generator, submit, parse, deadline_s)
        live.control = live.reader.stream.flow
        return None

    def _appended(self, append: pb.Append) -> GenerationRequest:
        """What a client wants generated after a request that has finished.

        Raises:
            InvalidRequest: the request still runs, or had no such choice.
            UnknownRequest: nothing is kept of it.
        """
        if self._live.get(append.after):
            raise InvalidRequest(f"request {append.after!r} still runs", "after")
        transcript = self._transcripts.find(append.after, append.choice)
        request = to_submitted(append)
        salt = transcript.cache_salt if request.cache_salt is None else request.cache_salt
        return replace(request, former=transcript.former(append.choice), cache_salt=salt)

    def _reprioritise(self, action: pb.Reprioritise) -> None:
        if live := self._find(action.request_id):
            live.control.reprioritise(action.priority)

    def _set_deadline(self, action: pb.SetDeadline) -> None:
        try:
            deadline_s = to_deadline_s(action)
        except InvalidRequest as error:
            self._refuse("", error)  # the request goes on
        else:
            if live := self._find(action.request_id):
                live.control.set_deadline(deadline_s)

    def _grant(self, action: pb.Credit) -> None:
        if live := self._find(action.request_id):
            live.control.grant(action.tokens)

    def _find(self, request_id: str) -> Live | None:
        """The request that an action is about. None: it has ended, or the client is told."""
        live = self._live.get(request_id)
        if live is not None:
            self._num_unhandled += live.control.num_rows
        elif not self._live.has_ended(request_id):
            self._refuse("", unknown(request_id))
        return live

    def _why_refused(self) -> RequestError | None:
        if self._is_draining:
            return _stopping()
        return self._live.why_full()

    def _refuse(self, request_id: str, error: RequestError) -> None:
        """`request_id`: of the request that ends with this; empty where it is that of none."""
        if request_id:
            self._transcripts.failed(request_id)
            self._live.remember(request_id)
        self._outbox.put([wire_format.event(status.failed(request_id, error))])

    def _cancel(self, action: pb.Cancel) -> None:
        if live := self._find(action.request_id):
            self._transcripts.failed(live.request_id)
            self._forget(live)
            if live.reader is not None:
                self._generator.resumption.give_up(live.reader)
            if live.generation is not None:
                live.generation.cancel()  # no token comes after this
            live.task.cancel()
            self._outbox.put([wire_format.event(status.cancelled(live.request_id))])

    async def _serve(self, live: Live, request: GenerationRequest | None) -> None:
        """Run one request to its terminal event. Raises nothing but CancelledError."""
        try:
            async with aclosing(await self._events(live, request)) as batches:
                async for events in batches:
                    await self._put(live, events)
        except RequestError as error:
            await self._fail(live, error)
        except Exception:
            _log.exception("request_failed", call="Session")
            await self._fail(live, status.internal_error())
        else:  # nothing has run since its last event was put
            transcript = live.transcript or transcript_behind(live.reader)
            self._transcripts.finished(live.request_id, transcript)
            self._forget(live)

    async def _events(
        self, live: Live, request: GenerationRequest | None
    ) -> AsyncGenerator[list[bytes], None]:
        """The request's events, encoded. Raises a RequestError if it is refused."""
        if request is None:
            assert live.reader is not None
            return read(live.reader, live.request_id)
        generation = await self._generator.submit(request, live.control)
        live.generation = generation
        live.transcript = transcript_of(generation, request)
        return relay(generation, live.request_id, self._taps, live.transcript)

    async def _fail(self, live: Live, error: RequestError) -> None:
        await self._put(live, [wire_format.event(status.failed(live.request_id, error))])
        self._transcripts.failed(live.request_id)
        self._forget(live)

    async def _put(self, live: Live, events: Iterable[bytes]) -> None:
        await self._outbox.room(None if live.reader is None else RESUMABLE_LIMIT_BYTES)
        if live.is_over:
            # The request has had its terminal event, but something it awaited lost the
            # cancellation (asyncio.wait_for does so until Python 3.12).
            raise asyncio.CancelledError
        self._outbox.put(events)

    def _forget(self, live: Live) -> None:
        self._live.remove(live)
        self._stop_reading_when_drained()

    def _stop_reading_when_drained(self) -> None:
        if self._is_draining and not self._live and self._reader is not None:
            self._reader.cancel()


def _stopping() -> RequestError:
    return EngineUnavailable("the server is stopping")


def _first(group: ExceptionGroup[Exception]) -> Exception:
    """The exception that ended the group; the rest are its echoes."""
    error = group.exceptions[0]
    return _first(error) if isinstance(error, ExceptionGroup) else error
