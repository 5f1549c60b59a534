"""Readers that take nothing: what each costs, and whether streams that are read notice.

Over SSE a reader never reads, with a small buffer of its own; on a Session it grants no more credit
and never reads. The engine has a real loop and scheduler, and steps of a fixed length: what stalled
readers cost shows as time added to them.
"""

from __future__ import annotations

import asyncio
import json
import socket
import statistics
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import grpc.aio
import httpx

from cadenza.v1 import generation_pb2 as pb
from cadenza.v1 import generation_pb2_grpc as stubs
from tests.chaos.measured_server import Figures, MeasuredServer, measured
from tests.chaos.parts import Outcome, Scale
from tests.chaos.streams import metric, until

CLIENTS = str(Path(__file__).parents[2] / "benchmarks/clients.py")
STEP_S = 0.020
SEATS = 1024
LIVE = 8
LIVE_TOKENS = 8_000
WINDOW_S = 10.0
SETTLED_S = 0.5  # without a token
PATIENCE_S = 45.0  # readers that take nothing are dropped after 60 s
CREDIT = 16
CALLS_EACH = 200  # of a gRPC connection
MOST_KIB = 64.0  # for each stalled reader
MOST_SLOWDOWN = 0.05

Stalling = Callable[[MeasuredServer, int], AbstractAsyncContextManager[None]]


class Pace(NamedTuple):
    """Of the live streams in one window."""

    tokens_s: float
    cpu_ms: float  # of front and engine, a token


async def run(scale: Scale) -> Outcome:
    """First one protocol, then the other, each on a service of its own."""
    figures: dict[str, Any] = {}
    wrong: list[str] = []
    for name, stalling in (("sse", stalled_sse), ("session", stalled_sessions)):
        async with measured("paced", str(STEP_S), str(SEATS)) as server:
            told = await measure(server, stalling, scale.stalled)
        figures[name] = told
        if told["kib_each"] > MOST_KIB:
            wrong.append(f"a stalled reader of {name} costs {told['kib_each']} KiB")
        if told["slowdown"] > MOST_SLOWDOWN:
            wrong.append(
                f"beside stalled readers of {name} others are {told['slowdown']:.1%} slower"
            )
    return Outcome({"stalled": figures}, wrong)


async def measure(server: MeasuredServer, stalling: Stalling, count: int) -> dict[str, Any]:
    async with httpx.AsyncClient(base_url=server.http, timeout=60) as http:
        before = await pace(server, http)
        empty = await server.figures()
        began_s = time.monotonic()
        async with stalling(server, count):
            await _no_more_tokens(http)
            held = await server.figures()
            stalled_s = time.monotonic() - began_s
            assert await _rows(http) == count, "not all are there"
            beside = await pace(server, http)
            assert await _rows(http) == count, "not all are there any more"
        await until(lambda: _is_empty(http))
        after = await pace(server, http)
    alone = statistics.mean((before.tokens_s, after.tokens_s))
    return {
        "readers": count,
        "kib_each": round(_grown_kib(empty, held) / count, 1),
        "slowdown": round(1 - beside.tokens_s / alone, 4),
        "tokens_s": [round(each.tokens_s, 1) for each in (before, beside, after)],
        "cpu_ms_per_token": [round(each.cpu_ms, 3) for each in (before, beside, after)],
        "until_stalled_s": round(stalled_s, 1),
    }


def _grown_kib(before: Figures, after: Figures) -> int:
    return after.front_kib + after.engine_kib - before.front_kib - before.engine_kib


async def pace(server: MeasuredServer, http: httpx.AsyncClient) -> Pace:
    """Of live streams, in one window."""
    rows = await _rows(http)
    numbers = map(str, (server.http_port, LIVE, LIVE, LIVE_TOKENS))
    command = (sys.executable, "-P", CLIENTS, "completions", *numbers)
    client = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert client.stdout is not None
    await client.stdout.readline()  # all have begun
    began = await server.figures()
    began_s, tokens = time.monotonic(), await metric(http, "generation_tokens_total")
    await asyncio.sleep(WINDOW_S)
    passed_s = time.monotonic() - began_s
    tokens = await metric(http, "generation_tokens_total") - tokens
    ended = await server.figures()
    client.kill()
    await client.wait()

    async def has_left() -> bool:
        return await _rows(http) == rows

    await until(has_left)
    cpu_s = ended.front_cpu_s + ended.engine_cpu_s - began.front_cpu_s - began.engine_cpu_s
    return Pace(tokens / passed_s, 1000 * cpu_s / tokens)


async def _is_empty(http: httpx.AsyncClient) -> bool:
    return not await _rows(http)


async def _rows(http: httpx.AsyncClient) -> float:
    """Those with a seat, parked ones too, and those without."""
    return sum([await metric(http, f"num_requests_{where}") for where in ("running", "waiting")])


async def _no_more_tokens(http: httpx.AsyncClient) -> None:
    async with asyncio.timeout(PATIENCE_S):
        before, now = -1.0, 0.0
        while before != now or not now:
            await asyncio.sleep(SETTLED_S)
            before, now = now, await metric(http, "generation_tokens_total")


@asynccontextmanager
async def stalled_sse(server: MeasuredServer, count: int) -> AsyncIterator[None]:
    """Connections that have asked and are never read."""
    body = {"prompt": "Once", "max_tokens": LIVE_TOKENS, "ignore_eos": True, "stream": True}
    data = json.dumps(body).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(data)
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            each.connect(("127.0.0.1", server.http_port))
            each.sendall(head + data)
        yield
    finally:
        for each in sockets:
            each.close()


@asynccontextmanager
async def stalled_sessions(server: MeasuredServer, count: int) -> AsyncIterator[None]:
    """Sessions that have submitted one request each, with little credit, and are never read."""
    options = (("grpc.use_local_subchannel_pool", 1),)
    channels = [
        grpc.aio.insecure_channel(server.grpc, options=options)
        for _ in range(-(-count // CALLS_EACH))
    ]
    generation = pb.GenerationInput(text="Once", max_tokens=LIVE_TOKENS, ignore_eos=True)
    submit = pb.Submit(request_id="stalled", input=generation, credit=CREDIT)
    calls = []
    try:
        for number in range(count):
            session = stubs.GenerationServiceStub(channels[number // CALLS_EACH]).Session
            calls.append(session())
            await calls[-1].write(pb.SessionRequest(submit=submit))
        yield
    finally:
        for call in calls:
            call.cancel()
        for channel in channels:
            await channel.close()
