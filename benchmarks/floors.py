"""Bare servers that stream bytes and do nothing else: what uvicorn and grpc.aio cost by themselves.

Each stream writes a chunk whenever the clock ticks; all of them tick together, as streams of one
engine do.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import uvicorn

sys.path.append(str(Path(__file__).parent))
import clients

_WARM_TICKS = 10


class Clock:
    """Lets all streams go on together, again and again."""

    def __init__(self, streams: int) -> None:
        self._streams = streams
        self._waiting: list[asyncio.Future[None]] = []
        self._all_wait = asyncio.Event()
        self._is_over = False

    async def tick(self) -> bool:
        """Wait for the next tick; False: there is none."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        if len(self._waiting) == self._streams:
            self._all_wait.set()
        await future
        return not self._is_over

    async def run(self, ticks: int, step_s: float) -> float:
        """Tick so often; the process's CPU seconds a tick."""
        await self._all_wait.wait()
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        for tick in range(-_WARM_TICKS, ticks):
            if tick == 0:
                began_s = time.process_time()
            self._wake()
            due_s += step_s
            await asyncio.sleep(due_s - loop.time())
        spent_s = time.process_time() - began_s
        self._is_over = True
        self._wake()
        return spent_s / ticks

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)


Streams = Callable[[Clock, bytes], Awaitable[tuple[int, Callable[[], Awaitable[None]]]]]


async def floor_s(kind: str, streams: int, chunk_bytes: int, ticks: int, step_s: float) -> float:
    """CPU seconds for a chunk of each of `streams`; `kind` is "http" or "grpc"."""
    clock = Clock(streams)
    serve: Streams = _serve_http if kind == "http" else _serve_grpc
    port, stop = await serve(clock, b"x" * chunk_bytes)
    reading = await asyncio.create_subprocess_exec(
        sys.executable, "-P", clients.__file__, f"bare-{kind}", str(port), str(streams)
    )
    try:
        return await clock.run(ticks, step_s)
    finally:
        await reading.wait()
        await stop()


async def _serve_http(clock: Clock, chunk: bytes) -> tuple[int, Callable[[], Awaitable[None]]]:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while await clock.tick():
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
    server = uvicorn.Server(
        uvicorn.Config(
            app, http="httptools", ws="none", lifespan="off", log_config=None, access_log=False
        )
    )
    serving = asyncio.create_task(server._serve([listener]))  # leaves signals alone

    async def stop() -> None:
        server.should_exit = server.force_exit = True
        await serving

    return listener.getsockname()[1], stop


async def _serve_grpc(clock: Clock, chunk: bytes) -> tuple[int, Callable[[], Awaitable[None]]]:
    async def stream(_: bytes, context: Any) -> None:
        while await clock.tick():
            await context.write(chunk)

    server = grpc.aio.server()
    handler = grpc.unary_stream_rpc_method_handler(stream)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("floor", {"stream": handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    return port, lambda: server.stop(None)
