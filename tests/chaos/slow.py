"""Clients that send slowly, and clients that stand still, beside some that do neither.

Slow-loris: connections that send a byte a second of a head or of a body are dropped once the time
for either is over. Frozen: processes that are stopped for a minute. Over SSE they find all of their
answers when they go on, also those that are far beyond any buffer; over gRPC, where a connection
answers pings or is gone, they are gone within ten seconds.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx

from tests.chaos.measured_server import MeasuredServer, measured
from tests.chaos.parts import Outcome, Scale
from tests.chaos.streams import Stream, follow, metric, until

CLIENTS = str(Path(__file__).parents[2] / "benchmarks/clients.py")
STEP_S, SEATS = 0.005, 64
LORIS = 250  # of each kind
HEAD_S, BODY_S, LATE_S = 30.0, 60.0, 10.0  # the service's limits, and what a busy machine adds
FROZEN = 8  # streams of each kind
FROZEN_S = 60.0
NOTICED_S = 10.0
SHORT, LONG = 64, 6_000  # tokens: within the buffers, and far beyond
BESIDE = {"prompt": "The river", "max_tokens": 48, "ignore_eos": True, "stream": True}


async def run(scale: Scale) -> Outcome:
    """All at once, on one service."""
    async with (
        measured("paced", str(STEP_S), str(SEATS)) as server,
        httpx.AsyncClient(base_url=server.http, timeout=300) as http,
    ):
        await follow(http, BESIDE, Stream(0))
        before = await server.settled()
        async with _beside(server) as beside:
            frozen, head_s, body_s = await asyncio.gather(
                _freeze(server, http),
                _dawdle(server, b"POST /v1/completions HTTP/1.1\r\nx: "),
                _dawdle(
                    server,
                    b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 999\r\n\r\n",
                ),
            )
        after = await server.settled()
    left = after.descriptors - before.descriptors
    wrong = [f"a stream beside them ended with {each.error}" for each in beside if each.error]
    if left > 0:
        wrong.append(f"{left} descriptors are left")
    if head_s > HEAD_S + LATE_S or body_s > BODY_S + LATE_S:
        wrong.append(f"slow heads were dropped after {head_s:.0f} s, bodies after {body_s:.0f} s")
    if frozen["grpc_noticed_s"] > NOTICED_S:
        wrong.append(f"frozen gRPC clients were noticed after {frozen['grpc_noticed_s']} s")
    if frozen["short_whole"] + frozen["long_whole"] != 2 * FROZEN:
        wrong.append("frozen clients lack tokens")
    loris = {"heads_dropped_s": round(head_s, 1), "bodies_dropped_s": round(body_s, 1)}
    figures = {"frozen": frozen, "loris": loris, "streams_beside": len(beside)}
    return Outcome(figures, wrong)


@asynccontextmanager
async def _beside(server: MeasuredServer) -> AsyncIterator[list[Stream]]:
    """Streams one after another meanwhile, four at a time."""
    ended: list[Stream] = []
    is_over = False

    async def one_after_another() -> None:
        while not is_over:
            stream = Stream(0)
            await follow(http, BESIDE, stream)
            ended.append(stream)

    async with httpx.AsyncClient(base_url=server.http, timeout=300) as http:
        readers = [asyncio.ensure_future(one_after_another()) for _ in range(4)]
        yield ended
        is_over = True
        await asyncio.gather(*readers)


async def _freeze(server: MeasuredServer, http: httpx.AsyncClient) -> dict[str, Any]:
    """Stop clients in the middle of their streams, and look who has everything afterwards."""
    http_port, grpc_port = str(server.http_port), server.grpc.rpartition(":")[2]
    async with AsyncExitStack() as running:
        over_grpc, long, short = [
            await running.enter_async_context(_clients(protocol, port, tokens))
            for protocol, port, tokens in (
                ("generate", grpc_port, LONG),
                ("completions", http_port, LONG),
                ("completions", http_port, SHORT),
            )
        ]
        frozen_s = time.monotonic()
        for each in (over_grpc, long, short):
            each.send_signal(signal.SIGSTOP)
        await until(lambda: _nobody_is_over_grpc(http))
        noticed_s = time.monotonic() - frozen_s
        await asyncio.sleep(FROZEN_S - noticed_s)
        parked = await metric(http, "num_requests_parked")
        for each in (over_grpc, long, short):
            each.send_signal(signal.SIGCONT)
        whole = [json.loads(await each.stdout.readline())["whole"] for each in (short, long)]
    return {
        "grpc_noticed_s": round(noticed_s, 1),
        "parked": parked,
        "short_whole": whole[0],
        "long_whole": whole[1],
    }


async def _nobody_is_over_grpc(http: httpx.AsyncClient) -> bool:
    return not await metric(http, "connections", 'protocol="grpc"')


@asynccontextmanager
async def _clients(protocol: str, port: str, tokens: int) -> AsyncIterator[Any]:
    """A process whose streams have all begun."""
    command = (sys.executable, "-P", CLIENTS, protocol, port, str(FROZEN), "1", str(tokens))
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    assert process.stdout is not None
    try:
        await process.stdout.readline()
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _dawdle(server: MeasuredServer, beginning: bytes) -> float:
    """Seconds until the last of many connections is dropped that go on with a byte a second."""
    began_s = time.monotonic()
    return max(await asyncio.gather(*(_one(server, beginning) for _ in range(LORIS)))) - began_s


async def _one(server: MeasuredServer, beginning: bytes) -> float:
    """When it was dropped."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.http_port)
    writer.write(beginning)
    dropped = asyncio.ensure_future(reader.read())
    while not dropped.done():
        writer.write(b"x")
        await asyncio.wait((dropped,), timeout=1.0)
    writer.close()
    with suppress(ConnectionError):
        await dropped
    return time.monotonic()
