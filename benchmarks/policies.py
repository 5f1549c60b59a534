"""How much longer streams stand still under hostile policies, by what these do and where.

A server of the demo model, a few long streams, and bursts of short requests that come and go. Each
case is a window with policies that have no opinion, and one in which they turn hostile, are found
out and quarantined. What counts is the largest gap between two tokens of a stream in either; the
difference should stay below twice the budget that policies have in a step.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx

sys.path += [str(Path(__file__).parent), str(Path(__file__).parents[1])]
from machine import heading

from cadenza.policies.contract import ENGINE_HOOKS, FRONT_HOOKS, OBSERVERS
from cadenza.policies.profile import OBSERVER
from cadenza.policies.runner import BUDGET_S
from tests.policies.hostile import KINDS, HostileModule, policy_of

COMMAND = (sys.executable, "-P", "-m", "cadenza.cli")
LIMITS = ("--max-num-seqs", "8", "--max-model-len", "2048", "--max-num-queued-reqs", "2")

STREAMS = 4
BURST = 4  # requests at once, more than find room
BURST_EVERY_S = 0.1
ROUNDS = 3
ONE_S, ALL_S = 1.5, 5.0  # a window, for one hook and for all of them: each has to fail three times

SIDES = {
    "engine, one hook": (["plan_budget"], ONE_S),
    "engine, all hooks": (ENGINE_HOOKS, ALL_S),
    "front, one hook": (["gate_arrivals"], ONE_S),
    "front, all hooks": (FRONT_HOOKS, ONE_S),
}


class Streams:
    """Clients of a service, and when each token came."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._times: list[list[float]] = []

    async def read_for_ever(self) -> None:
        while True:
            times: list[float] = []
            self._times.append(times)
            reader, writer = await self._post("Once upon a time", 2000)
            with contextlib.suppress(asyncio.IncompleteReadError):
                while True:
                    await reader.readuntil(b"\n\n")
                    times.append(time.perf_counter())
            writer.close()

    async def come_and_go(self) -> None:
        while True:
            await asyncio.gather(*[self._ask() for _ in range(BURST)])
            await asyncio.sleep(BURST_EVERY_S)

    async def until_all_stream(self) -> None:
        while sum(len(times) > 5 for times in self._times) < STREAMS:  # noqa: ASYNC110
            await asyncio.sleep(0.1)

    async def largest_gap_in(self, seconds: float) -> float:
        start_s = time.perf_counter()
        await asyncio.sleep(seconds)
        gaps = [
            later - earlier
            for times in self._times
            for earlier, later in pairwise(times)
            if earlier >= start_s
        ]
        return max(gaps)

    async def _ask(self) -> None:
        reader, writer = await self._post("Hello", 1)
        await reader.read()
        writer.close()

    async def _post(
        self, prompt: str, max_tokens: int
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        body = {"prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, "stream": True}
        data = json.dumps(body).encode()
        head = "POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n"
        writer.write(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
        await writer.drain()
        return reader, writer


@contextlib.contextmanager
def server(folder: Path) -> Iterator[str]:
    """Its address. All hooks have hostile policies."""
    flags = [f"--plugins-dir={folder}", "--log-level=error"]
    flags += [
        f"--policy={OBSERVER if hook in OBSERVERS else hook}={policy_of(hook)}"
        for hook in (*ENGINE_HOOKS, *FRONT_HOOKS)
    ]
    process = subprocess.Popen(
        [*COMMAND, "serve", "demo", "--port=0", "--grpc-port=0", *LIMITS, *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # quarantines, which are no news here
        text=True,
    )
    assert process.stdout is not None
    banner = ""
    try:
        while "Stop with Ctrl-C." not in banner:
            line = process.stdout.readline()
            assert line, banner
            banner += line
        yield re.findall(r"HTTP (http://\S+)/v1", banner)[0]
    finally:
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGINT)
        process.wait()


class Bench:
    """One server, and what its operator does."""

    def __init__(self, url: str, module: HostileModule, streams: Streams) -> None:
        self._module, self._streams = module, streams
        self._client = httpx.AsyncClient(base_url=url, timeout=60)

    async def measure(self, kind: str, hooks: Any, seconds: float) -> dict[str, float]:
        """Milliseconds of the largest gap in all rounds, without and with hostile policies."""
        without_s = with_s = 0.0
        found_out: set[str] = set()
        for _ in range(ROUNDS):
            without_s = max(without_s, await self._streams.largest_gap_in(seconds))
            self._module.arm(kind, hooks)
            with_s = max(with_s, await self._streams.largest_gap_in(seconds))
            report = (await self._client.get("/v1/policies")).json()["live"]
            found_out |= {*report["quarantined"]}
            self._module.disarm()
            for hook in hooks:
                answer = await self._client.post(f"/v1/policies/{policy_of(hook)}/release")
                answer.raise_for_status()
        return {
            "without_ms": round(1e3 * without_s, 1),
            "with_ms": round(1e3 * with_s, 1),
            "extra_ms": round(1e3 * (with_s - without_s), 1),
            "quarantined": len(found_out),
        }


async def measure_all(url: str, module: HostileModule) -> list[dict[str, Any]]:
    streams = Streams(int(url.rsplit(":", 1)[1]))
    tasks = [asyncio.create_task(streams.read_for_ever()) for _ in range(STREAMS)]
    tasks.append(asyncio.create_task(streams.come_and_go()))
    await streams.until_all_stream()
    bench, results = Bench(url, module, streams), []
    for side, (hooks, seconds) in SIDES.items():
        for kind in KINDS:
            result = await bench.measure(kind, hooks, seconds)
            show(side, kind, result)
            results.append({"side": side, "kind": kind, **result})
    for task in tasks:
        task.cancel()
    return results


def show(side: str, kind: str, result: dict[str, float]) -> None:
    figures = "".join(f"{result[name]:10.1f}" for name in ("without_ms", "with_ms", "extra_ms"))
    print(f"{side:20}{kind:20}{figures}{result['quarantined']:13.0f}", flush=True)


def main() -> None:
    print(heading())
    print(f"The largest gap between tokens of {STREAMS} streams, in ms; the extra should stay")
    print(f"under {2e3 * BUDGET_S:.0f} ms, twice the budget of a step's policies.")
    columns = "".join(f"{name:>10}" for name in ("without", "with", "extra"))
    print(f"{'side':20}{'kind':20}{columns}{'quarantined':>13}")
    with tempfile.TemporaryDirectory() as folder:
        module = HostileModule(Path(folder))
        with server(Path(folder)) as url:
            results = asyncio.run(measure_all(url, module))
    print(json.dumps({"policies": results}))


if __name__ == "__main__":
    main()
