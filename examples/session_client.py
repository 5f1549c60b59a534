"""A small client of a Session: many requests on one stream, each an object with typed events.

python examples/session_client.py localhost:50051 "Name three rivers." "Which is the longest?"

asks the questions one after the other, each in the conversation that the ones before it have begun.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeAlias

import grpc

from cadenza.v1 import generation_pb2 as pb
from cadenza.v1.generation_pb2_grpc import GenerationServiceStub


@dataclass(frozen=True)
class Accepted:
    """The request waits for its turn, behind so many choices of others."""

    prompt_tokens: int
    queue_position: int


@dataclass(frozen=True)
class Text:
    """New output of one choice."""

    choice: int
    text: str
    token_ids: Sequence[int]


@dataclass(frozen=True)
class Parked:
    """The credit is used up: grant more, or nothing comes."""


@dataclass(frozen=True)
class Finished:
    """The last event of a request that has all of its answer."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


class RequestFailed(Exception):
    """A request ended otherwise. `code` is gRPC's."""

    def __init__(self, failed: pb.Failed) -> None:
        super().__init__(failed.message)
        self.code = failed.code
        self.is_retryable = failed.retryable


Event: TypeAlias = Accepted | Text | Parked | Finished


class Request:
    """One request: iterate over its events, or take its whole text."""

    def __init__(self, session: SessionClient, request_id: str) -> None:
        self.id = request_id
        self._session = session
        self._events: asyncio.Queue[pb.Event | Exception] = asyncio.Queue()

    async def __aiter__(self) -> AsyncIterator[Event]:
        """Its events; raises RequestFailed in place of what is missing."""
        while True:
            told = await self._events.get()
            if isinstance(told, Exception):
                raise told
            if told.HasField("failed"):
                raise RequestFailed(told.failed)
            event = _event(told)
            if event is not None:
                yield event
            if isinstance(event, Finished):
                return

    async def text(self) -> str:
        """All text of its first choice."""
        parts = [event async for event in self if isinstance(event, Text)]
        return "".join(part.text for part in parts if part.choice == 0)

    async def credit(self, tokens: int) -> None:
        """Take so many tokens more, of a request that was begun with `credit`."""
        await self._session.send(credit=pb.Credit(request_id=self.id, tokens=tokens))

    async def cancel(self) -> None:
        """Give it up: its events end with RequestFailed."""
        await self._session.send(cancel=pb.Cancel(request_id=self.id))

    def tell(self, told: pb.Event | Exception) -> None:
        """What the stream has brought for it."""
        self._events.put_nowait(told)


class SessionClient:
    """One stream. `async with` opens it; leaving waits until all its requests have ended."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._call = GenerationServiceStub(channel).Session()
        self._live: dict[str, Request] = {}
        self._names = map(str, itertools.count())
        self._reading = asyncio.ensure_future(self._read())

    async def submit(self, generation: pb.GenerationInput, credit: int | None = None) -> Request:
        """Begin a request."""
        request = self._begin()
        submit = pb.Submit(request_id=request.id, input=generation, credit=credit)
        await self.send(submit=submit)
        return request

    async def append(
        self, after: Request, generation: pb.GenerationInput, credit: int | None = None
    ) -> Request:
        """Begin a request that goes on from one that has finished."""
        request = self._begin()
        append = pb.Append(request_id=request.id, after=after.id, input=generation, credit=credit)
        await self.send(append=append)
        return request

    async def send(self, **action: Any) -> None:
        """Send one action, by its name."""
        await self._call.write(pb.SessionRequest(**action))

    async def __aenter__(self) -> SessionClient:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            await self._call.done_writing()
            await self._reading
        else:
            self._call.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    def _begin(self) -> Request:
        request = Request(self, next(self._names))
        self._live[request.id] = request
        return request

    async def _read(self) -> None:
        """Hand every event to its request; when the stream is lost, tell them all."""
        try:
            async for response in self._call:
                for event in response.events:
                    self._tell(event)
        except grpc.aio.AioRpcError as error:
            for request in self._live.values():
                request.tell(error)

    def _tell(self, event: pb.Event) -> None:
        request = self._live.get(event.request_id)
        if request is None:
            return  # about an action for a request that has ended
        request.tell(event)
        if event.HasField("finished") or event.HasField("failed"):
            del self._live[event.request_id]


def _event(told: pb.Event) -> Event | None:
    """None for what this client does not care about, such as notices of new kinds."""
    match told.WhichOneof("event"):
        case "accepted":
            return Accepted(told.accepted.prompt_tokens, told.accepted.queue_position)
        case "tokens":
            return Text(told.tokens.choice, told.tokens.text, tuple(told.tokens.token_ids))
        case "notice" if told.notice.HasField("parked"):
            return Parked()
        case "finished":
            usage = told.finished.usage
            return Finished(usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens)
    return None


def question(content: str) -> pb.GenerationInput:
    """A user's turn, answered by the most probable tokens."""
    turn = pb.ChatMessage(role="user", content=content)
    return pb.GenerationInput(chat=pb.Chat(messages=[turn]), max_tokens=100, temperature=0.0)


async def converse(address: str, questions: Sequence[str]) -> None:
    """Ask each question in the conversation so far, and print the answers as they grow."""
    async with grpc.aio.insecure_channel(address) as channel, SessionClient(channel) as session:
        former: Request | None = None
        for content in questions:
            sys.stdout.write(f"> {content}\n")
            if former is None:
                former = await session.submit(question(content))
            else:
                former = await session.append(former, question(content))
            async for event in former:
                match event:
                    case Text(text=text):
                        sys.stdout.write(text)
                    case Finished(cached_tokens=cached, prompt_tokens=tokens):
                        sys.stdout.write(f"\n  ({cached} of {tokens} tokens from the cache)\n")


if __name__ == "__main__":
    asyncio.run(converse(sys.argv[1], sys.argv[2:]))
