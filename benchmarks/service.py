"""What a streamed token costs the front process, by protocol, and whether many streams hold.

Three processes: the front (the real HTTP and gRPC servers, tokenizer and engine client, on
uvloop), a synthetic engine that gives every row a token a step, and clients that count bytes. The
cost is the CPU time of the front's process, all threads, over the tokens that it sent meanwhile.
Beside it a floor of the same run: what a bare uvicorn or grpc.aio server takes for chunks of the
same size, a chunk a stream and step (a chunk for all streams, where one carries them).

Many streams are held to their end twice: the first time warms up. Memory is flat where the second
adds nothing. The lag is how late a timer of 5 ms fires on the front's loop while they stream.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import uvloop

sys.path.append(str(Path(__file__).parent))
import clients
import synthetic_engine
from floors import floor_s
from machine import heading
from served_front import Lag, ServedFront, Totals, front

from cadenza.checkpoints.locate import locate
from cadenza.service.http.answer import chunk_text
from cadenza.service.limits import Limits
from cadenza.service.rpc import wire_format
from cadenza.service.tokenizer import Tokenizer, load_tokenizer
from cadenza.wire.heap import freeze_heap
from cadenza.wire.logging import configure_logging

MANY = 2_000
SETTLE_S = 2.0  # until whatever is made as it is first used has been
SPARE_S = 1.5  # for the streams that begin first, until the last has
FLOOR_S = 3.0


class Case(NamedTuple):
    """Streams of one protocol."""

    protocol: str
    streams: int
    connections: int  # for the streams of gRPC; HTTP has one each
    step_s: float
    window_s: float  # that is measured
    target_us: float | None = None

    @property
    def name(self) -> str:
        if self.connections == 1 or self.together == 1:
            return f"{self.protocol} {self.streams}"
        return f"{self.protocol} {self.connections}x{self.together}"

    @property
    def together(self) -> int:
        """That one stream of the protocol carries: a Session has many requests."""
        return self.streams // self.connections if self.protocol == "session" else 1

    @property
    def tokens(self) -> int:
        """For each stream, so that all of them run from the beginning to the end of the window."""
        return round((SETTLE_S + self.window_s + SPARE_S + self.streams / 100) / self.step_s)


COSTS = (
    Case("chat", 64, 64, 0.010, 5.0, 15.0),
    Case("completions", 64, 64, 0.010, 5.0, 15.0),
    Case("generate", 64, 1, 0.010, 5.0, 35.0),
    Case("session", 64, 1, 0.010, 5.0, 5.0),
    Case("session", 256, 4, 0.010, 5.0, 5.0),
    Case("session", 512, 8, 0.010, 5.0, 5.0),
)
HOLDS = (
    Case("chat", MANY, MANY, 0.250, 5.0),
    Case("session", MANY, 20, 0.250, 5.0),
)


async def stream(served: ServedFront, case: Case, lag: Lag | None = None) -> dict[str, Any]:
    """Let a case's clients stream to their end."""
    numbers = served.http_port if case.protocol in clients.HTTP else served.grpc_port
    arguments = (numbers, case.streams, case.connections, case.tokens)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", clients.__file__, case.protocol, *map(str, arguments)),
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert json.loads(await process.stdout.readline()) == {"begun": case.streams}
    await asyncio.sleep(SETTLE_S)
    assert len(served.engine.work) == case.streams, "streams ended before the window"
    before = Totals.now(served.generator)
    late_from = len(lag.late_ms) if lag else 0
    await asyncio.sleep(case.window_s)
    passed = Totals.now(served.generator) - before
    assert len(served.engine.work) == case.streams, "streams ended within the window"
    late_ms = lag.late_ms[late_from:] if lag else [0.0]
    told = json.loads(await process.stdout.readline())
    assert await process.wait() == 0
    assert told["whole"] == case.streams, told
    async with asyncio.timeout(10):
        await served.rest()
    return {
        "us_per_token": round(1e6 * passed.cpu_s / passed.tokens, 2),
        "loop_us_per_token": round(1e6 * passed.loop_cpu_s / passed.tokens, 2),
        "tokens": passed.tokens,
        "bytes_per_token": round(told["num_bytes"] / case.streams / case.tokens, 1),
        "busy": round(passed.cpu_s / passed.wall_s, 2),
        "lag_ms": round(max(late_ms), 1),
        "in_flight": served.generator.num_in_flight,
    }


async def cost(served: ServedFront, case: Case) -> dict[str, Any]:
    """A case, and its floor."""
    figures = await stream(served, case)
    kind = "http" if case.protocol in clients.HTTP else "grpc"
    chunk_bytes = round(figures["bytes_per_token"] * case.together)
    ticks = round(FLOOR_S / case.step_s)
    tick_s = await floor_s(kind, case.streams // case.together, chunk_bytes, ticks, case.step_s)
    figures["floor_us"] = round(1e6 * tick_s / case.streams, 2)
    figures["ratio"] = round(figures["us_per_token"] / figures["floor_us"], 2)
    return figures


async def hold(served: ServedFront, case: Case) -> dict[str, Any]:
    """A case twice, with the memory that it took."""
    before = rss_mb()
    await stream(served, case)
    warm = rss_mb()
    lag = Lag()
    figures = await stream(served, case, lag)
    lag.cancel()
    after, peak = rss_mb(), rss_mb("VmHWM")
    figures |= {"rss_mb": after, "peak_mb": peak}
    return figures | {
        "warm_up_mb": round(warm - before, 1),
        "grown_mb": round(after - warm, 1),
    }


def rss_mb(name: str = "VmRSS") -> float:
    """Memory of this process: that it has, or VmHWM, the most that it had."""
    lines = Path("/proc/self/status").read_text().splitlines()
    [line] = [line for line in lines if line.startswith(name)]
    return round(int(line.split()[1]) / 1024, 1)


async def measure_all(only: str) -> dict[str, dict[str, Any]]:
    tokenizer = load_tokenizer(locate("demo").path)
    await tokenizer.usual_texts.look_up((chunk_text, wire_format.token))  # as while engines load
    freeze_heap()
    results: dict[str, dict[str, Any]] = {}
    for measure, cases, columns in (cost, COSTS, COST_COLUMNS), (hold, HOLDS, HOLD_COLUMNS):
        chosen = [case for case in cases if only in case.name]
        if chosen:
            print("".join(f"{column:>{WIDTH}}" for column in ("case", *columns)))
        for case in chosen:
            async with serving(tokenizer, case) as served:
                results[case.name] = figures = await measure(served, case)
            if case.target_us is not None:
                figures["target_us"] = case.target_us
            cells = [case.name, *(figures[column] for column in columns)]
            print("".join(f"{cell:>{WIDTH}}" for cell in cells), flush=True)
    return results


def serving(tokenizer: Tokenizer, case: Case) -> Any:
    process = synthetic_engine.start(case.step_s)
    return front(tokenizer, process, limits=Limits(max_queued=2 * MANY))


WIDTH = 18
COST_COLUMNS = ("us_per_token", "loop_us_per_token", "floor_us", "ratio", "bytes_per_token", "busy")
HOLD_COLUMNS = (
    *("us_per_token", "busy", "lag_ms", "rss_mb", "warm_up_mb", "grown_mb", "peak_mb"),
    "in_flight",
)


def main() -> None:
    configure_logging("warning")  # as the command does
    only = (sys.argv[1:2] or [""])[0]  # a part of a case's name
    print(heading())
    began_s = time.perf_counter()
    results = uvloop.run(measure_all(only))
    print(f"{time.perf_counter() - began_s:.0f} s")
    print(json.dumps({"service": results}))


if __name__ == "__main__":
    main()
