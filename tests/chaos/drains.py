"""SIGTERM with many streams in flight: none that could end within the grace is cut.

Each time a service of its own gets the signal at another moment. Streams are told over HTTP and
gRPC; who asks afterwards is refused with a status, or finds no service.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from collections import Counter
from typing import Any

import grpc.aio
import httpx

from cadenza.v1 import generation_pb2 as pb
from cadenza.v1 import generation_pb2_grpc as stubs
from tests.chaos.parts import Outcome, Scale
from tests.chaos.streams import Stream, follow, is_ready, metric, until
from tests.e2e.servers import Served, serving

IN_FLIGHT, OVER_GRPC = 200, 50
GRACE_S = 300.0  # in which all of them could end, however busy the machine
TOKENS = (8, 32)
LATEST_S = 1.0  # from all having arrived to the signal
FLAGS = ("--max-num-seqs", "64", "--shutdown-timeout", str(GRACE_S))


async def run(scale: Scale) -> Outcome:
    """One service after another."""
    chance = random.Random(scale.seed)
    seen: Counter[str] = Counter()
    wrong: list[str] = []
    for number in range(scale.drains):
        with serving(*FLAGS) as served:
            told = await _drain(served, chance)
            async with asyncio.timeout(30):
                status = await asyncio.to_thread(served.process.wait)
        sys.stdout.write(
            f"drain {number + 1}: {told['in_flight']} in flight, {told['dropped']} dropped\n"
        )
        sys.stdout.flush()
        if status:
            wrong.append(f"service {number} left with status {status}")
        if told["dropped"]:
            wrong.append(f"service {number} dropped {told['dropped']} streams")
        if told["taken"]:
            wrong.append(f"service {number} took a request after the signal")
        seen += told
    figures = {
        "drains": scale.drains,
        "drain_streams": seen["streams"],
        "drain_in_flight_at_signal": seen["in_flight"],
        "drain_dropped": seen["dropped"],
        "drain_refused": seen["refused"],
    }
    return Outcome(figures, wrong)


async def _drain(served: Served, chance: random.Random) -> Counter[str]:
    limits = httpx.Limits(max_connections=None)
    async with (
        httpx.AsyncClient(base_url=served.http, timeout=2 * GRACE_S, limits=limits) as http,
        grpc.aio.insecure_channel(served.grpc) as channel,
    ):
        wanted = [chance.randint(*TOKENS) for _ in range(IN_FLIGHT)]
        streams = [asyncio.ensure_future(_over_grpc(channel, n)) for n in wanted[:OVER_GRPC]]
        streams += [asyncio.ensure_future(_over_http(http, n)) for n in wanted[OVER_GRPC:]]

        async def all_are_there() -> bool:
            return await _arrived(http) >= IN_FLIGHT - sum(each.done() for each in streams)

        await until(all_are_there)
        await asyncio.sleep(chance.uniform(0, LATEST_S))
        in_flight = sum(not each.done() for each in streams)
        os.kill(served.process.pid, signal.SIGTERM)
        afterwards = await _ask_once_stopping(http)
        got = await asyncio.gather(*streams)
    return Counter(
        streams=IN_FLIGHT,
        in_flight=in_flight,
        dropped=sum(each != n for each, n in zip(got, wanted, strict=True)),
        refused=afterwards == 503,
        taken=afterwards == 200,
    )


async def _arrived(http: httpx.AsyncClient) -> float:
    """Requests that the service has, wherever they are."""
    names = ("num_requests_running", "num_requests_waiting")
    return sum([await metric(http, name) for name in names])


async def _ask_once_stopping(http: httpx.AsyncClient) -> int | None:
    """The status of a request that comes after the signal; None: nobody answers any more."""
    try:
        await until(lambda: _is_stopping(http))
        answer = await http.post("/v1/completions", json={"prompt": "x", "max_tokens": 1})
    except httpx.HTTPError:
        return None
    return answer.status_code


async def _is_stopping(http: httpx.AsyncClient) -> bool:
    return not await is_ready(http)


async def _over_http(http: httpx.AsyncClient, max_tokens: int) -> int:
    """How many tokens came, of a stream that came whole; else -1."""
    body: dict[str, Any] = {
        "prompt": "Once",
        "max_tokens": max_tokens,
        "ignore_eos": True,
        "stream": True,
        "return_token_ids": True,
    }
    stream = Stream(0)
    await follow(http, body, stream)
    return -1 if stream.error or not stream.is_done else len(stream.tokens[0])


async def _over_grpc(channel: grpc.aio.Channel, max_tokens: int) -> int:
    generation = pb.GenerationInput(text="Once", max_tokens=max_tokens, ignore_eos=True)
    tokens = -1
    try:
        async for message in stubs.GenerationServiceStub(channel).Generate(
            pb.GenerateRequest(input=generation)
        ):
            for event in message.events:
                if event.HasField("finished"):
                    tokens = event.finished.usage.completion_tokens
    except grpc.aio.AioRpcError:
        return -1
    return tokens
