"""The front process put together: both servers, the tokenizer, and one engine process."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import signal
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import structlog

from cadenza.service.engine_client import EngineClient
from cadenza.service.engine_process import EngineProcess
from cadenza.service.errors import EngineUnavailable
from cadenza.service.generator import Generator
from cadenza.service.http.app import build_app
from cadenza.service.http.server import HttpServer
from cadenza.service.limits import Limits
from cadenza.service.rpc.server import GrpcServer
from cadenza.service.tokenizer import Tokenizer
from cadenza.wire.messages import EngineConfig, Progress, Ready

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
    shutdown_timeout_s: float = 30.0  # for requests in flight after the first signal


class Front:
    """Serves until a signal, or until the engine is gone.

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
        self._process = process
        self._on_progress = on_progress
        self._on_ready = on_ready

    async def run(self) -> str | None:
        """Serve. Returns None after a signal, or why the engine is gone.

        Raises:
            OSError: a port cannot be bound; nothing was served.
        """
        engine = await EngineClient.connect(self._process.connection)
        try:
            return await self._serve(engine)
        finally:
            engine.close()
            status = await self._process.stop()
            _log.info("engine left", status=status)

    async def _serve(self, engine: EngineClient) -> str | None:
        config = self._config
        sockets = bind(config.host, config.port)
        generator = Generator(
            engine, self._tokenizer, model_names=config.model_names, limits=config.limits
        )
        http = HttpServer(build_app(generator), sockets, graceful_s=config.shutdown_timeout_s)
        grpc = GrpcServer(generator, host=config.host, port=config.grpc_port)
        try:
            grpc_port = await grpc.start()
        except OSError:
            for sock in sockets:
                sock.close()
            raise
        addresses = Addresses(config.host, sockets[0].getsockname()[1], grpc_port)
        engine.watch_progress(self._on_progress)
        engine.start(config.engine)
        serving = asyncio.ensure_future(http.serve())
        announcing = asyncio.ensure_future(self._announce(engine, grpc, addresses))
        try:
            await self._until_stopped(engine, http, grpc)
        finally:
            announcing.cancel()
            http.stop()
            grace_s = 0.0 if engine.failure is not None else config.shutdown_timeout_s
            await asyncio.gather(serving, grpc.stop(grace_s))
            generator.close()
        return engine.failure

    async def _announce(self, engine: EngineClient, grpc: GrpcServer, addresses: Addresses) -> None:
        with contextlib.suppress(EngineUnavailable):  # told by `run`
            ready = await engine.ready()
            await grpc.set_ready(True)
            self._on_ready(ready, addresses)

    async def _until_stopped(
        self, engine: EngineClient, http: HttpServer, grpc: GrpcServer
    ) -> None:
        """Wait for a signal or the end of the engine. A further signal ends the grace."""
        loop = asyncio.get_running_loop()
        stopped = asyncio.Event()
        ending: list[asyncio.Future[None]] = []

        def on_signal() -> None:
            if stopped.is_set():
                http.stop()
                ending.append(asyncio.ensure_future(grpc.stop(0)))
            stopped.set()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, on_signal)
        waiting = {asyncio.ensure_future(stopped.wait()), asyncio.ensure_future(engine.lost())}
        _, pending = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()


def bind(host: str, port: int) -> list[socket.socket]:
    """Listening sockets on every address of `host`, all on one port.

    Raises:
        OSError: the sentence says where we cannot listen, and why.
    """
    sockets: list[socket.socket] = []
    try:
        for family, _, _, _, address in socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            where = (address[0], sockets[0].getsockname()[1] if sockets else port)
            sockets.append(socket.create_server(where, family=family, backlog=2048))
    except OSError as error:
        for sock in sockets:
            sock.close()
        reason = "the port is in use" if error.errno == errno.EADDRINUSE else error.strerror
        raise OSError(f"HTTP cannot listen on {host}:{port}: {reason or error}") from error
    return sockets
