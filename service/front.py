"""The front process put together: both servers, the tokenizer, and one engine process."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import structlog

from cadenza.policies.hook_guard import HookGuard, SignalGuard
from cadenza.policies.library import Library
from cadenza.policies.profile import Profile
from cadenza.service.admin import Admin, AdminAccess
from cadenza.service.engine_client import EngineClient
from cadenza.service.engine_process import EngineProcess
from cadenza.service.errors import EngineUnavailable
from cadenza.service.front_policies import FrontPolicies
from cadenza.service.generator import Generator
from cadenza.service.http.answer import chunk_text
from cadenza.service.http.app import build_app
from cadenza.service.http.server import HttpServer
from cadenza.service.limits import Limits
from cadenza.service.listening import is_loopback, listen
from cadenza.service.metrics import Metrics
from cadenza.service.otel import open_tracer
from cadenza.service.policy_control import PolicyControl
from cadenza.service.recorder import Recorder
from cadenza.service.rpc import wire_format
from cadenza.service.rpc.connections import ANY_AGE, ConnectionAge
from cadenza.service.rpc.server import GrpcServer
from cadenza.service.standby import Standby
from cadenza.service.supervisor import MAX_RESTARTS, Supervisor
from cadenza.service.tokenizer import Tokenizer
from cadenza.wire.messages import EngineConfig, Progress, Ready

_LEAVE_S = 5.0  # what a serving engine has to finish its step and leave
_FLUSH_S = 1.0  # what the last words of a stream have to reach its client
_ENCODES = (chunk_text, wire_format.token)  # of tokens' texts, by protocol

_log = structlog.get_logger(__name__)


class Addresses(NamedTuple):
    """Where clients reach us; the ports are those in force."""

    host: str
    http_port: int
    grpc_port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontConfig:
    """What the front process serves, and where. Port 0 takes any free one."""

    host: str
    port: int
    grpc_port: int
    model_names: Sequence[str]
    engine: EngineConfig
    limits: Limits = field(default_factory=Limits)
    profile: Profile = field(default_factory=Profile)  # the engine builds one of its own
    library: Library = field(default_factory=Library)  # which it was built of
    preset: str | None = None  # which it began with
    may_set_watermark: bool = True  # whether presets may
    admin_key: str | None = None
    traces_endpoint: str | None = None  # of OTLP by HTTP
    record: Path | None = None  # where requests are written down for the simulator
    metrics_tenants: Sequence[str] = ()  # that get series of their own
    metrics_as_vllm: bool = True  # whether metrics go by vLLM's names as well
    grpc_connection_age: ConnectionAge = ANY_AGE
    shutdown_timeout_s: float = 30.0  # for requests in flight after the first signal
    max_engine_restarts: int = MAX_RESTARTS  # within a minute of serving


class Front:
    """Serves until a signal, or until there is no engine any more.

    The first SIGTERM or SIGINT lets requests in flight end, the second ends them at once.
    """

    def __init__(
        self,
        config: FrontConfig,
        tokenizer: Tokenizer,
        process: EngineProcess,
        *,
        on_progress: Callable[[Progress], None],
        on_ready: Callable[[Ready, Addresses], None],
    ) -> None:
        self._config = config
        self._tokenizer = tokenizer
        self._process = process  # the present one
        self._standby = Standby()
        self._on_progress = on_progress
        self._on_ready = on_ready

    async def run(self) -> str | None:
        """Serve, in the main thread. Returns None after a signal, or why the engine is gone.

        Raises:
            OSError: a port cannot be bound; nothing was served.
        """
        engine = await EngineClient.connect(self._process.connection, recovers=True)
        try:
            with SignalGuard() as guard:
                await self._serve(engine, guard)
            return None if engine.is_closing else engine.failure
        finally:
            # An engine that loads does not listen, and has nothing to lose.
            grace_s = _LEAVE_S if engine.is_serving else 0.0
            engine.close()
            self._standby.end()
            status = await self._process.stop(grace_s)
            self._process.end()
            _log.info("engine left", status=status)
            # It died in a hook, or hung there until it was killed
            if during := self._process.hook_under_way:
                _log.error("engine left in a policy's hook", status=status, during=during)

    async def _serve(self, engine: EngineClient, guard: HookGuard) -> None:
        config = self._config
        sockets = listen("HTTP", config.host, config.port)
        tracer = None if config.traces_endpoint is None else open_tracer(config.traces_endpoint)
        metrics = Metrics(config.metrics_tenants)
        recorder = (
            None if config.record is None else Recorder(config.record, config.engine.block_size)
        )
        generator = Generator(
            engine,
            self._tokenizer,
            model_names=config.model_names,
            limits=config.limits,
            metrics=metrics,
            tracer=tracer,
            recorder=recorder,
            policies=FrontPolicies(config.profile, guard=guard, timer=time.monotonic),
        )
        control = PolicyControl(
            engine,
            generator.policies,
            config.library,
            config.engine.policies,
            preset=config.preset,
            may_set_watermark=config.may_set_watermark,
        )
        access = AdminAccess(config.admin_key, is_local=is_loopback(config.host))
        admin = Admin(control, access)
        app = build_app(
            generator,
            admin,
            metrics_as_vllm=config.metrics_as_vllm,
            num_connections=lambda: {"http": http.num_connections, "grpc": grpc.num_connections},
        )
        http = HttpServer(app, sockets, graceful_s=_FLUSH_S)
        grpc = GrpcServer(
            generator,
            admin,
            host=config.host,
            port=config.grpc_port,
            connection_age=config.grpc_connection_age,
        )
        try:
            grpc_port = await grpc.start()
        except OSError:
            for sock in sockets:
                sock.close()
            raise
        _log.info("grpc serves", port=grpc_port, services=grpc.services)
        addresses = Addresses(config.host, sockets[0].getsockname()[1], grpc_port)
        engine.watch_progress(lambda each: None if engine.limits else self._on_progress(each))
        engine.start(config.engine)
        if config.max_engine_restarts:
            engine.watch_serving(self._standby.note_serving)
        supervisor = Supervisor(
            engine,
            self._process,
            lambda: control.engine_config(config.engine),
            metrics,
            max_restarts=config.max_engine_restarts,
            start=self._start_another,
        )
        serving = asyncio.ensure_future(http.serve())
        # Meanwhile the engine loads
        looking_up = asyncio.ensure_future(self._tokenizer.usual_texts.look_up(_ENCODES))
        announcing = asyncio.ensure_future(self._announce(engine, grpc, control, addresses))
        supervising = asyncio.ensure_future(supervisor.run())
        try:
            await self._until_stopped(engine, generator, grpc, announcing, [serving, supervising])
        finally:
            looking_up.cancel()
            announcing.cancel()
            supervising.cancel()
            # Closing the engine first ends what is left with an error event, not a cut connection.
            engine.close()
            http.stop()
            ended = await asyncio.gather(
                serving, announcing, supervising, grpc.stop(_FLUSH_S), return_exceptions=True
            )
            generator.close()
            if recorder is not None:
                recorder.close()
            if tracer is not None:
                await asyncio.to_thread(tracer.close)
            for outcome in ended:
                if isinstance(outcome, Exception):
                    raise outcome

    def _start_another(self) -> EngineProcess:
        self._process.end()
        self._process = self._standby.take()
        return self._process

    async def _announce(
        self,
        engine: EngineClient,
        grpc: GrpcServer,
        control: PolicyControl,
        addresses: Addresses,
    ) -> None:
        """Tell whoever looks when there is an engine that serves, and have it as the former was."""
        changes: asyncio.Queue[bool] = asyncio.Queue()
        with contextlib.suppress(EngineUnavailable):  # told by `run`
            ready = await engine.ready()
            engine.watch_serving(changes.put_nowait)
            await grpc.set_ready(True)
            self._on_ready(ready, addresses)
            while True:
                is_serving = await changes.get()
                await grpc.set_ready(is_serving)
                if is_serving:
                    await control.restore_shadow()

    async def _until_stopped(
        self,
        engine: EngineClient,
        generator: Generator,
        grpc: GrpcServer,
        announcing: asyncio.Future[None],
        servants: Sequence[asyncio.Future[None]],
    ) -> None:
        """Wait for a signal and then for the requests in flight; or for an end nobody asked for."""
        loop = asyncio.get_running_loop()
        signals: asyncio.Queue[None] = asyncio.Queue()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, signals.put_nowait, None)
        ended = partial(asyncio.wait, servants, return_when=asyncio.FIRST_COMPLETED)
        if await _first(signals.get(), engine.lost(), ended()) == 0:
            announcing.cancel()
            await grpc.set_ready(False)
            drained = generator.drain(self._config.shutdown_timeout_s)
            await _first(drained, signals.get(), engine.lost(), ended())


async def _first(*coroutines: Coroutine[Any, Any, Any]) -> int:
    """Index of the first to end; the others are cancelled and have ended too."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return next(index for index, task in enumerate(tasks) if task.done())
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
