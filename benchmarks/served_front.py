"""A front that serves, for benchmarks, and what is measured of its process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import AsyncIterator
from typing import NamedTuple

import numpy as np

# Else gRPC tells of every process that is started here once it has threads
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

from cadenza.service.engine_client import EngineClient
from cadenza.service.engine_process import EngineProcess
from cadenza.service.front_policies import FrontPolicies
from cadenza.service.generator import Generator
from cadenza.service.http import HttpServer, build_app
from cadenza.service.limits import Limits
from cadenza.service.rpc import GrpcServer
from cadenza.service.tokenizer import Tokenizer
from cadenza.wire.messages import EngineConfig

TIMER_S = 0.005


class ServedFront(NamedTuple):
    """The parts of a front that measuring needs."""

    generator: Generator
    engine: EngineClient
    http: HttpServer
    http_port: int
    grpc_port: int

    async def rest(self) -> None:
        """Wait until nothing is left of any request, nor of its connection."""
        while not self.generator.is_idle or self.http.num_connections:  # noqa: ASYNC110
            await asyncio.sleep(TIMER_S)


@contextlib.asynccontextmanager
async def front(
    tokenizer: Tokenizer,
    process: EngineProcess,
    *,
    config: EngineConfig | None = None,
    limits: Limits | None = None,
    policies: FrontPolicies | None = None,
) -> AsyncIterator[ServedFront]:
    """Both servers on free ports, with the engine that runs in `process`, which ends with them.

    config: for an engine that waits to be told what to load.
    """
    engine = await EngineClient.connect(process.connection)
    if config is not None:
        engine.start(config)
    await engine.ready()
    generator = Generator(
        engine, tokenizer, model_names=("demo",), limits=limits, policies=policies
    )
    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
    http = HttpServer(build_app(generator), [listener], graceful_s=1)
    grpc = GrpcServer(generator, port=0)
    grpc_port = await grpc.start()
    serving = asyncio.create_task(http.serve())
    try:
        yield ServedFront(generator, engine, http, listener.getsockname()[1], grpc_port)
    finally:
        http.stop()
        await asyncio.gather(serving, grpc.stop(1))
        listener.close()
        engine.close()
        generator.close()
        await process.stop()


class Totals(NamedTuple):
    """What the front has done so far."""

    tokens: int  # told to clients
    encoded: int  # prompt tokens
    loop_cpu_s: float  # of the loop's thread, from which this is made
    cpu_s: float  # of the process, with the threads that gRPC has
    wall_s: float

    @classmethod
    def now(cls, generator: Generator) -> Totals:
        metrics = generator.metrics
        tokens = metrics.generation_tokens, metrics.prompt_tokens
        return cls(*tokens, time.thread_time(), time.process_time(), time.perf_counter())

    def __sub__(self, other: Totals) -> Totals:
        return Totals(*(mine - theirs for mine, theirs in zip(self, other, strict=True)))


class Lag:
    """How late a timer of 5 ms fires, again and again, until it is cancelled."""

    def __init__(self) -> None:
        self.late_ms: list[float] = []
        self._loop = asyncio.get_running_loop()
        self._arm()

    def _arm(self) -> None:
        self._due_s = time.perf_counter() + TIMER_S
        self._timer = self._loop.call_later(TIMER_S, self._fire)

    def _fire(self) -> None:
        self.late_ms.append(1e3 * max(0.0, time.perf_counter() - self._due_s))
        self._arm()

    def cancel(self) -> None:
        self._timer.cancel()

    def percentile(self, share: float) -> float:
        return round(float(np.percentile(self.late_ms, share)), 2)


async def lag_for(seconds: float) -> Lag:
    lag = Lag()
    await asyncio.sleep(seconds)
    lag.cancel()
    return lag
