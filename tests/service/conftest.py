"""A front process in a test: real sockets, a fake engine, one event loop a test."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn.server
import uvloop

from cadenza.policies.builtin import BUILTIN
from cadenza.policies.discovery import BUILT_IN, Catalog, Found
from cadenza.policies.hook_guard import HookGuard
from cadenza.policies.library import Library
from cadenza.policies.profile import Profile
from cadenza.service.engine_client import EngineClient
from cadenza.service.generator import Generator
from cadenza.service.limits import Limits
from cadenza.service.metrics import Metrics
from cadenza.service.policy_control import PolicyControl
from cadenza.service.recorder import Recorder
from cadenza.service.resumable_stream import Later
from cadenza.service.tokenizer import Tokenizer
from cadenza.service.tracing import Tracer
from cadenza.wire.messages import DescribePolicies, EngineConfig, PolicyConfig

from .byte_tokenizer import make_tokenizer
from .entering import front_policies
from .fake_engine import FakeEngine, echo_numbers


@dataclass
class Front:
    engine: FakeEngine
    client: EngineClient
    generator: Generator
    tokenizer: Tokenizer
    control: PolicyControl

    def says(self, text: str) -> None:
        """Let the engine answer every request with this text."""
        ids = self.tokenizer.encode_text(text)
        self.engine.reply = lambda submit: ids

    def says_tokens(self, *ids: int) -> None:
        self.engine.reply = lambda submit: list(ids)

    async def step(self, count: int = 1) -> None:
        """Let the engine step, and whoever reads have each step's tokens alone."""
        for _ in range(count):
            self.engine.step()
            await self.told()

    async def told(self) -> None:
        """Wait until all that the engine has said is told: it answers behind that.

        Once for what it said, and once for those whom that has woken.
        """
        for _ in range(2):
            await self.client.ask(DescribePolicies)

    async def recover(self) -> None:
        """Let another engine take the place of the one that is lost, or about to be."""
        await self.client.loss()
        before, ours = self.engine, await self._another()
        self.engine.auto = before.auto
        await self.client.succeed(ours, EngineConfig(model="m"))
        self.engine.become_ready()
        await self.client.ready()

    async def _another(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        before = self.engine
        self.engine = FakeEngine(
            before.reply,
            vocab_size=before.vocab_size,
            eos=before.eos,
            max_model_len=before.max_model_len,
        )
        await self.engine.attach(theirs)
        return ours

    def is_clean(self) -> bool:
        """Whether nothing is left of any request, here or in the engine."""
        rows = len(self.client.work) or self.engine.running or self.engine.waiting
        return not rows and self.generator.num_queued == 0


OpenFront = Callable[..., AbstractAsyncContextManager[Front]]


@pytest.fixture
def run() -> Callable[[Coroutine[Any, Any, Any]], Any]:
    """Run one coroutine on the loop that the service uses."""
    return uvloop.run


@pytest.fixture
def hasty_uvicorn(monkeypatch: pytest.MonkeyPatch) -> None:
    """uvicorn looks every 0.1 s for a reason to stop, and twice more until it has; here oftener."""

    async def sleep(seconds: float) -> None:
        await asyncio.sleep(seconds / 50)

    impatient = SimpleNamespace(**{**vars(asyncio), "sleep": sleep})
    monkeypatch.setattr(uvicorn.server, "asyncio", impatient)


@pytest.fixture
def open_front() -> OpenFront:
    @asynccontextmanager
    async def opened(
        *,
        limits: Limits | None = None,
        ready: bool = True,
        max_model_len: int = 256,
        policies: dict[str, type] | None = None,
        chosen: dict[str, str] | None = None,
        options: dict[str, dict[str, Any]] | None = None,
        guard: HookGuard | None = None,
        limit_s: float = 20.0,
        patience_s: float = 45.0,
        metrics: Metrics | None = None,
        tracer: Tracer | None = None,
        recorder: Recorder | None = None,
        later: Later | None = None,
        recovers: bool = False,
    ) -> AsyncIterator[Front]:
        tokenizer = make_tokenizer()
        eos = tokenizer.backend.token_to_id("<|end|>")
        engine = FakeEngine(
            echo_numbers, vocab_size=tokenizer.vocab_size, eos=eos, max_model_len=max_model_len
        )
        ours, theirs = socket.socketpair()
        await engine.attach(theirs)
        client = await EngineClient.connect(ours, recovers=recovers)
        profile = Profile(chosen, BUILTIN | (policies or {}), options)
        generator = Generator(
            client,
            tokenizer,
            model_names=["tiny", "alias"],
            limits=limits,
            metrics=metrics,
            tracer=tracer,
            recorder=recorder,
            later=later,
            policies=front_policies(profile, guard),
        )
        found = {
            name: Found(cls=cls, source="test", version="1.5")
            for name, cls in (policies or {}).items()
        }
        built_in = {name: Found(cls=cls, source=BUILT_IN) for name, cls in BUILTIN.items()}
        control = PolicyControl(
            client,
            generator.policies,
            Library(catalog=Catalog(policies=built_in | found)),
            PolicyConfig(),
            limit_s=limit_s,
            patience_s=patience_s,
        )
        if ready:
            engine.become_ready()
            await client.ready()
        try:
            yield Front(engine, client, generator, tokenizer, control)
        finally:
            client.close()
            await client.lost()
            generator.close()

    return opened
