"""Lag of the front's event loop while it streams to many clients.

Three processes: the front (the real HTTP application, tokenizer and engine client, on uvloop), a
synthetic engine that gives every row a token a step, and a client that reads every stream and sends
a long chat to tokenise now and then. The lag is how late a timer of 5 ms fires on the front's loop;
its floor is the lag of the same loop while nothing happens.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvloop

sys.path.append(str(Path(__file__).parent))
import synthetic_engine
from machine import heading
from served_front import TIMER_S, ServedFront, Totals, front, lag_for

from cadenza.checkpoints.locate import locate
from cadenza.service.tokenizer import load_tokenizer
from cadenza.wire.logging import configure_logging

ROLE = (sys.executable, "-P", __file__)

STREAMS = (64, 256)
IDLE_S = 2.0
BUSY_S = 5.0
STEP_S = 0.010
LONG_CHARS = 20_000
LONG_EVERY_S = 0.2


async def measure(served: ServedFront, streams: int) -> dict[str, float]:
    """Every figure of one number of streams."""
    idle = await lag_for(IDLE_S)
    client = await asyncio.create_subprocess_exec(
        *ROLE, "client", str(served.http_port), str(streams), stdout=subprocess.PIPE
    )
    assert client.stdout is not None
    await client.stdout.readline()  # every stream has begun
    before = Totals.now(served.generator)
    busy = await lag_for(BUSY_S)
    passed = Totals.now(served.generator) - before
    client.terminate()
    await client.wait()
    await served.rest()
    return {
        "streams": streams,
        "lag_p50_ms": busy.percentile(50),
        "lag_p99_ms": busy.percentile(99),
        "lag_max_ms": busy.percentile(100),
        "idle_p99_ms": idle.percentile(99),
        "events_s": round(passed.tokens / passed.wall_s),
        "encoded_tokens_s": round(passed.encoded / passed.wall_s),
        "loop_cpu_us_per_event": round(1e6 * passed.loop_cpu_s / passed.tokens, 1),
        "loop_cpu_share": round(passed.loop_cpu_s / passed.wall_s, 2),
    }


async def measure_all() -> list[dict[str, float]]:
    tokenizer = load_tokenizer(locate("demo").path)
    results = []
    for streams in STREAMS:
        async with front(tokenizer, synthetic_engine.start(STEP_S)) as served:
            results.append(await measure(served, streams))
    return results


async def read_streams(port: int, streams: int) -> None:
    """Open the streams, say when all of them have begun, and read until terminated."""
    body = {"prompt": "Once", "max_tokens": 30_000, "ignore_eos": True, "stream": True}
    readers = [await post(port, "completions", body) for _ in range(streams)]
    for reader in readers:
        await reader.readuntil(b"\ndata: ")
    print("reading", flush=True)
    async with asyncio.TaskGroup() as tasks:
        for reader in readers:
            tasks.create_task(read_all(reader))
        tasks.create_task(ask_long_questions(port))


async def ask_long_questions(port: int) -> None:
    question = ("What a long question this is, and it goes on. " * LONG_CHARS)[:LONG_CHARS]
    body = {"messages": [{"role": "user", "content": question}], "max_tokens": 1}
    while True:
        reader = await post(port, "chat/completions", body, close=True)
        assert b"200 OK" in await reader.readline()
        await read_all(reader)
        await asyncio.sleep(LONG_EVERY_S)


async def post(port: int, path: str, body: Any, *, close: bool = False) -> asyncio.StreamReader:
    """A connection of its own, on which the request has been sent."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    data = json.dumps(body).encode()
    head = f"POST /v1/{path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(data)}\r\n"
    writer.write(head.encode() + b"connection: close\r\n" * close + b"\r\n" + data)
    await writer.drain()
    reader.connection = writer  # type: ignore[attr-defined] # a writer let go of closes
    return reader


async def read_all(reader: asyncio.StreamReader) -> None:
    while await reader.read(1 << 16):
        pass


def show(results: list[dict[str, float]]) -> None:
    print(f"A timer of {1e3 * TIMER_S:.0f} ms on the front's loop: how many ms late it fires.")
    print(f"An engine step every {1e3 * STEP_S:.0f} ms, a token a stream in each; and a chat of")
    print(f"{LONG_CHARS} characters to tokenise, {LONG_EVERY_S} s after the last.")
    print(f"{'streams':>8}{'p50':>8}{'p99':>8}{'max':>8}{'idle p99':>10}{'ratio':>8}", end="")
    print(f"{'events/s':>10}{'us/event':>10}{'loop busy':>11}")
    for result in results:
        ratio = result["lag_p99_ms"] / max(result["idle_p99_ms"], 0.01)
        print(
            f"{result['streams']:8}{result['lag_p50_ms']:8.1f}{result['lag_p99_ms']:8.1f}", end=""
        )
        print(f"{result['lag_max_ms']:8.1f}{result['idle_p99_ms']:10.1f}{ratio:8.1f}", end="")
        print(f"{result['events_s']:10}{result['loop_cpu_us_per_event']:10.1f}", end="")
        print(f"{result['loop_cpu_share']:11.0%}")
    print(json.dumps({"front": results}))


def main() -> None:
    roles: dict[str, Callable[[list[str]], None]] = {
        "client": lambda arguments: uvloop.run(read_streams(*map(int, arguments))),
    }
    role, arguments = (sys.argv[1:2] or [""])[0], sys.argv[2:]
    if role in roles:
        roles[role](arguments)
        return
    configure_logging("warning")  # as the command does
    print(heading())
    show(uvloop.run(measure_all()))


if __name__ == "__main__":
    main()
