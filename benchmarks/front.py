"""Lag of the front's event loop while it streams to many clients.

Three processes: the front (the real HTTP application, tokenizer and engine client, on uvloop), a
synthetic engine that gives every row a token a step, and a client that reads every stream and sends
a long chat to tokenise now and then. The lag is how late a timer of 5 ms fires on the front's loop;
its floor is the lag of the same loop while nothing happens.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import uvloop

from cadenza.checkpoints.locate import locate
from cadenza.service.engine_client import EngineClient
from cadenza.service.engine_process import EngineProcess, start_engine
from cadenza.service.generator import Generator
from cadenza.service.http import HttpServer, build_app
from cadenza.service.tokenizer import Tokenizer, load_tokenizer
from cadenza.wire.codec import FrameReader, encode
from cadenza.wire.logging import configure_logging
from cadenza.wire.messages import (
    Cancel,
    Counters,
    Finish,
    Finished,
    Ready,
    Shutdown,
    Step,
    Submit,
    ToEngine,
)

sys.path.append(str(Path(__file__).parent))
from machine import heading

ROLE = (sys.executable, "-P", __file__)

STREAMS = (64, 256)
IDLE_S = 2.0
BUSY_S = 5.0
TIMER_S = 0.005
STEP_S = 0.010
LONG_CHARS = 20_000
LONG_EVERY_S = 0.2


class Lag:
    """How late a timer fires, again and again, until it is cancelled."""

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


class Totals(NamedTuple):
    """What the front has done so far."""

    events: int  # tokens sent to clients
    encoded: int  # prompt tokens
    cpu_s: float  # of the loop's thread, from which this is made
    wall_s: float

    @classmethod
    def now(cls, generator: Generator) -> Totals:
        metrics = generator.metrics
        tokens = metrics.generation_tokens, metrics.prompt_tokens
        return cls(*tokens, time.thread_time(), time.perf_counter())

    def __sub__(self, other: Totals) -> Totals:
        return Totals(*(mine - theirs for mine, theirs in zip(self, other, strict=True)))


@contextlib.asynccontextmanager
async def front(
    tokenizer: Tokenizer, process: EngineProcess
) -> AsyncIterator[tuple[Generator, int]]:
    """A front that serves: its generator and its HTTP port."""
    engine = await EngineClient.connect(process.connection)
    await engine.ready()
    generator = Generator(engine, tokenizer, model_names=("demo",))
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    http = HttpServer(build_app(generator), [listener], graceful_s=1)
    serving = asyncio.create_task(http.serve())
    try:
        yield generator, listener.getsockname()[1]
    finally:
        http.stop()
        await serving
        listener.close()
        engine.close()
        generator.close()
        await process.stop()


async def measure(generator: Generator, port: int, streams: int) -> dict[str, float]:
    """Every figure of one number of streams."""
    idle = await lag_for(IDLE_S)
    client = await asyncio.create_subprocess_exec(
        *ROLE, "client", str(port), str(streams), stdout=subprocess.PIPE
    )
    assert client.stdout is not None
    await client.stdout.readline()  # every stream has begun
    before = Totals.now(generator)
    busy = await lag_for(BUSY_S)
    passed = Totals.now(generator) - before
    client.terminate()
    await client.wait()
    while not generator.is_idle:  # noqa: ASYNC110 - nothing is measured here
        await asyncio.sleep(TIMER_S)
    return {
        "streams": streams,
        "lag_p50_ms": busy.percentile(50),
        "lag_p99_ms": busy.percentile(99),
        "lag_max_ms": busy.percentile(100),
        "idle_p99_ms": idle.percentile(99),
        "events_s": round(passed.events / passed.wall_s),
        "encoded_tokens_s": round(passed.encoded / passed.wall_s),
        "loop_cpu_us_per_event": round(1e6 * passed.cpu_s / passed.events, 1),
        "loop_cpu_share": round(passed.cpu_s / passed.wall_s, 2),
    }


async def measure_all() -> list[dict[str, float]]:
    tokenizer = load_tokenizer(locate("demo").path)
    results = []
    for streams in STREAMS:
        process = start_engine((*ROLE, "engine"))
        async with front(tokenizer, process) as (generator, port):
            results.append(await measure(generator, port, streams))
    return results


@dataclass
class Engine:
    """Gives every row a token a step, at most 1 / STEP_S steps a second."""

    channel: socket.socket
    rows: dict[int, int] = field(default_factory=dict)  # request -> tokens left
    arrived: list[int] = field(default_factory=list)  # since the last step
    steps: int = 0
    is_running: bool = True

    def run(self) -> None:
        reader: FrameReader[ToEngine] = FrameReader(ToEngine)  # type: ignore[arg-type]
        self.channel.sendall(encode(READY))
        due_s = time.perf_counter()
        while self.is_running:
            due_s = max(due_s + STEP_S, time.perf_counter())
            self._hear(reader, due_s)
            if self.is_running and self.rows:
                self.channel.sendall(encode(self._step()))

    def _hear(self, reader: FrameReader[ToEngine], until_s: float) -> None:
        while self.is_running and (left_s := until_s - time.perf_counter()) > 0:
            self.channel.settimeout(left_s)
            with contextlib.suppress(TimeoutError):
                data = self.channel.recv(1 << 16)
                self.is_running = bool(data)
                for message in reader.feed(data):
                    self._handle(message)
        self.channel.settimeout(None)

    def _handle(self, message: ToEngine) -> None:
        match message:
            case Submit():
                self.rows[message.request] = message.max_tokens
                self.arrived.append(message.request)
            case Cancel(request) | Finish(request):
                self.rows.pop(request, None)
            case Shutdown():
                self.is_running = False

    def _step(self) -> Step:
        requests, arrived, self.arrived = list(self.rows), self.arrived, []
        self.rows = {request: left - 1 for request, left in self.rows.items()}
        ends = [Finished.NOT if self.rows[request] else Finished.LENGTH for request in requests]
        self.rows = {request: left for request, left in self.rows.items() if left}
        self.steps += 1
        tokens = 1000 + (np.arange(len(requests)) + self.steps) % 4000
        return Step(
            step_id=self.steps,
            requests=np.array(requests, dtype="<i8").tobytes(),
            tokens=tokens.astype("<i4").tobytes(),
            finished=bytes(ends),
            admitted=np.array(arrived, dtype="<i8").tobytes(),
            admitted_cached=bytes(4 * len(arrived)),
            counters=Counters(running=len(self.rows), steps=self.steps, total_blocks=1),
        )


READY = Ready(
    max_model_len=32_768,
    vocab_size=49_152,
    eos_token_ids=(2,),
    num_blocks=1,
    block_size=16,
    max_num_seqs=512,
    max_num_batched_tokens=8192,
    device="none",
    dtype="none",
    load_s=0.0,
)


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
        "engine": lambda arguments: Engine(socket.socket(fileno=int(arguments[1]))).run(),
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
