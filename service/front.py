"""The front process put together: its servers, and whoever sees to one engine process."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

import structlog

from cadenza.policies.hook_guard import HookGuard, SignalGuard
from cadenza.service.ended import all_ended
from cadenza.service.engine_client import EngineClient
from cadenza.service.engine_process import EngineProcess
from cadenza.service.errors import EngineUnavailable
from cadenza.service.front_config import Addresses, FrontConfig
from cadenza.service.http.answer import chunk_text
from cadenza.service.rpc import wire_format
from cadenza.service.servers import Servers
from cadenza.service.standby import Standby
from cadenza.service.supervisor import Supervisor
from cadenza.service.tokenizer import Tokenizer
from cadenza.wire.messages import Progress, Ready

_LEAVE_S = 5.0  # what a serving engine has to finish its step and leave
_ENCODES = (chunk_text, wire_format.token)  # of tokens' texts, by protocol

_log = structlog.get_logger(__name__)


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
        except EngineUnavailable as error:  # before it was told anything
            return error.message
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
        servers = Servers(config, self._tokenizer, engine, guard)
        addresses = await servers.open()
        # While the engine loads
        looking_up = asyncio.ensure_future(self._tokenizer.usual_texts.look_up(_ENCODES))
        tasks: list[asyncio.Future[None]] = []
        try:
            engine.watch_progress(lambda each: None if engine.limits else self._on_progress(each))
            engine.start(config.engine)
            if config.max_engine_restarts:
                engine.watch_serving(self._standby.note_serving)
            supervisor = Supervisor(
                engine,
                self._process,
                lambda: servers.control.engine_config(config.engine),
                servers.metrics,
                max_restarts=config.max_engine_restarts,
                start=self._start_another,
            )
            announcing = asyncio.ensure_future(self._announce(engine, servers, addresses))
            supervising = asyncio.ensure_future(supervisor.run())
            tasks += [announcing, supervising]
            await self._until_stopped(engine, servers, announcing, [servers.serving, supervising])
        finally:
            for task in (looking_up, *tasks):
                task.cancel()
            # Closing the engine first ends what is left with an error event, not a cut connection.
            engine.close()
            try:
                await all_ended(*tasks, servers.stop())
            finally:
                await servers.close()

    def _start_another(self) -> EngineProcess:
        self._process.end()
        self._process = self._standby.take()
        return self._process

    async def _announce(
        self,
        engine: EngineClient,
        servers: Servers,
        addresses: Addresses,
    ) -> None:
        """Tell whoever looks when there is an engine that serves, and have it as the former was."""
        changes: asyncio.Queue[bool] = asyncio.Queue()
        with contextlib.suppress(EngineUnavailable):  # told by `run`
            ready = await engine.ready()
            engine.watch_serving(changes.put_nowait)
            await servers.grpc.set_ready(True)
            self._on_ready(ready, addresses)
            while True:
                is_serving = await changes.get()
                await servers.grpc.set_ready(is_serving)
                if is_serving:
                    await servers.control.restore_shadow()

    async def _until_stopped(
        self,
        engine: EngineClient,
        servers: Servers,
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
            await servers.grpc.set_ready(False)
            drained = servers.generator.drain(self._config.shutdown_timeout_s)
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
