"""A generator under the test's control, and a real server and channel on loopback."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
import uvloop

from cadenza.service.control import Control
from cadenza.service.errors import RequestError
from cadenza.service.events import Admitted, Delta, Event, Finished, FinishReason
from cadenza.service.request import GenerationRequest
from cadenza.service.rpc import GrpcServer
from cadenza.service.tap import Tap
from cadenza.service.token_texts import TokenTexts
from cadenza.v1 import generation_pb2 as pb
from cadenza.v1.generation_pb2_grpc import GenerationServiceStub


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine test on a uvloop of its own, as in production, for at most 20 seconds."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    arguments = {name: pyfuncitem.funcargs[name] for name in names}
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(pyfuncitem.obj(**arguments), 20))
    return True


class FakeGeneration:
    """Yields the batches it is fed, and ends when each choice has been fed its end."""

    def __init__(self, id: str, num_choices: int = 1) -> None:
        self.id = id
        self.model = "fake"
        self.prompt_tokens = 7
        self.prompt = range(7)
        self.queue_position = 2
        self.num_choices = num_choices
        self.num_pulled = 0  # batches that the server has asked for and got
        self.controls: list[tuple[str, float | None]] = []  # what was done with it, in order
        self.cancelled = asyncio.Event()  # set, too, where a finished generation is left
        self.is_finished = False
        self._batches: asyncio.Queue[list[Event] | RequestError | Exception] = asyncio.Queue()

    def feed(self, *events: Event) -> None:
        self._batches.put_nowait(list(events))

    def fail(self, error: Exception) -> None:
        self._batches.put_nowait(error)

    def say(self, *words: str) -> None:
        """Feed a batch a word, then the end."""
        self.feed(Admitted(cached_tokens=3))
        for number, word in enumerate(words):
            self.feed(Delta(choice=0, text=word, token_ids=[number]))
        self.end(completion_tokens=len(words))

    def end(self, choice: int = 0, completion_tokens: int = 1) -> None:
        reason = FinishReason.LENGTH
        self.feed(
            Finished(
                choice=choice,
                reason=reason,
                stop_reason=None,
                completion_tokens=completion_tokens,
            )
        )

    def tap(self, of_choice: Callable[[int, TokenTexts], Tap]) -> None:
        """What is fed is for whoever iterates."""

    async def __aiter__(self) -> AsyncIterator[list[Event]]:
        unfinished = self.num_choices
        while unfinished:
            batch = await self._batches.get()
            if isinstance(batch, Exception):
                raise batch
            self.num_pulled += 1
            unfinished -= sum(isinstance(event, Finished) for event in batch)
            self.is_finished = not unfinished
            yield batch

    def cancel(self) -> None:
        self.cancelled.set()

    def reprioritise(self, priority: int) -> None:
        self.controls.append(("priority", priority))

    def set_deadline(self, deadline_s: float | None) -> None:
        self.controls.append(("deadline", deadline_s))

    def grant(self, tokens: int) -> None:
        self.controls.append(("credit", tokens))

    async def __aenter__(self) -> FakeGeneration:
        return self

    async def __aexit__(self, *_: object) -> None:
        if not self.is_finished:
            self.cancel()


class FakeGenerator:
    """Makes a `FakeGeneration` of each request, named by its text; the test feeds them."""

    def __init__(self) -> None:
        self.generations: dict[str, FakeGeneration] = {}
        self.requests: list[GenerationRequest] = []
        self.is_paused = False
        self.errors: dict[str, Exception] = {}  # by text: what submit raises
        self.on_submit: Callable[[FakeGeneration], None] = lambda generation: None
        self._changed = asyncio.Event()
        self._handled = asyncio.Event()  # what was sent; set, too, where nothing lags
        self._handled.set()

    def lags(self) -> None:
        """Let the engine handle nothing until it `catches_up`."""
        self._handled.clear()

    def catches_up(self) -> None:
        """The engine has handled what was sent until now."""
        handled, self._handled = self._handled, asyncio.Event()
        handled.set()

    async def caught_up(self) -> None:
        await self._handled.wait()

    async def submit(
        self, request: GenerationRequest, control: Control | None = None
    ) -> FakeGeneration:
        text = request.text or ""
        self.requests.append(request)
        if text in self.errors:
            raise self.errors[text]
        generation = FakeGeneration(f"gen-{text[:20]}", request.n or 1)
        self.generations[text] = generation
        if control is not None:
            control.launched(generation)  # type: ignore[arg-type]
        self.on_submit(generation)
        self._changed.set()
        return generation

    async def generation(self, text: str) -> FakeGeneration:
        """The generation of the request with this text, once it is submitted."""
        while text not in self.generations:
            self._changed.clear()
            await self._changed.wait()
        return self.generations[text]


@dataclass
class Served:
    """A running server, and one client's connection to it."""

    server: GrpcServer
    port: int
    channel: grpc.aio.Channel
    stub: GenerationServiceStub


@pytest.fixture
def generator() -> FakeGenerator:
    return FakeGenerator()


Serve = Callable[..., AbstractAsyncContextManager[Served]]


@pytest.fixture
def serve(generator: FakeGenerator) -> Serve:
    """`async with serve() as served`: a server of the fake generator, stopped at the end."""

    @asynccontextmanager
    async def serve(
        options: list[tuple[str, int]] | None = None, **settings: float
    ) -> AsyncIterator[Served]:
        server = GrpcServer(generator, port=0, **settings)
        port = await server.start()
        try:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
                yield Served(server, port, channel, GenerationServiceStub(channel))
        finally:
            await server.stop(0)

    return serve


@pytest.fixture
def serve_front(open_front):
    """`async with serve_front(...) as (front, stub)`: a server that is stopped at the end."""

    @asynccontextmanager
    async def served(**settings: object) -> AsyncIterator[tuple[Any, GenerationServiceStub]]:
        async with open_front(**settings) as front:
            server = GrpcServer(front.generator, port=0)
            port = await server.start()
            try:
                async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                    yield front, GenerationServiceStub(channel)
            finally:
                await server.stop(0)
            assert front.is_clean()

    return served


@pytest.fixture
def request_of() -> Callable[..., pb.GenerateRequest]:
    """A Generate request of a text."""

    def request_of(text: str, **fields: object) -> pb.GenerateRequest:
        return pb.GenerateRequest(input=pb.GenerationInput(text=text, **fields))

    return request_of


@pytest.fixture
def submit_of() -> Callable[..., pb.SessionRequest]:
    """A Session submit; the text is the request id unless it is given."""

    def submit_of(request_id: str, text: str | None = None, **fields: object) -> pb.SessionRequest:
        spec = pb.GenerationInput(text=request_id if text is None else text, **fields)
        return pb.SessionRequest(submit=pb.Submit(request_id=request_id, input=spec))

    return submit_of


@pytest.fixture
def cancel_of() -> Callable[[str], pb.SessionRequest]:
    """A Session cancel."""
    return lambda request_id: pb.SessionRequest(cancel=pb.Cancel(request_id=request_id))
