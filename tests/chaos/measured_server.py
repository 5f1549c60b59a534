"""A service in a process of its own that tells what it holds: tasks, descriptors, memory.

Started as `python -m tests.chaos.measured_server demo` or `... paced STEP_S SEATS`. It prints its
addresses as JSON, and a line of figures for every line on its standard input.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import uvloop

# Else gRPC tells of every process that is started where it has threads
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

from cadenza.checkpoints.locate import locate
from cadenza.engine.heap import trim
from cadenza.service.engine_process import start_engine
from cadenza.service.front import Front
from cadenza.service.front_config import Addresses, FrontConfig
from cadenza.service.limits import Limits
from cadenza.service.tokenizer import load_tokenizer
from cadenza.wire.heap import freeze_heap
from cadenza.wire.logging import configure_logging
from cadenza.wire.messages import EngineConfig, Ready
from tests.chaos import paced_engine

MAX_QUEUED = 4096
SEATS = 32
NUM_BLOCKS = 256  # few, so that all of their memory is taken soon
LOADS_S = 120.0
SETTLES_S = 0.5


class Figures(NamedTuple):
    """What a service holds."""

    tasks: int
    descriptors: int
    front_kib: int  # of its own that is resident, once what is free is given back
    engine_kib: int  # likewise; caches are mapped, and not counted
    front_cpu_s: float
    engine_cpu_s: float


@dataclass(frozen=True, slots=True)
class MeasuredServer:
    """One that runs, as its clients see it."""

    http: str
    http_port: int
    grpc: str
    process: asyncio.subprocess.Process

    async def figures(self) -> Figures:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(b"\n")
        return Figures(*json.loads(await self.process.stdout.readline()))

    async def settled(self) -> Figures:
        """Once neither tasks nor descriptors change: connections that were left are gone."""
        before = await self.figures()
        while True:
            await asyncio.sleep(SETTLES_S)
            now = await self.figures()
            if (now.tasks, now.descriptors) == (before.tasks, before.descriptors):
                return now
            before = now


@asynccontextmanager
async def measured(*arguments: str) -> AsyncIterator[MeasuredServer]:
    """Start one, and in the end have it leave."""
    command = (sys.executable, "-P", "-m", "tests.chaos.measured_server", *arguments)
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    assert process.stdout is not None
    try:
        async with asyncio.timeout(LOADS_S):
            told = json.loads(await process.stdout.readline())
        http, grpc = told["http_port"], told["grpc_port"]
        yield MeasuredServer(f"http://127.0.0.1:{http}", http, f"127.0.0.1:{grpc}", process)
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGINT)
            process.send_signal(signal.SIGINT)
        await process.wait()


async def serve(arguments: list[str]) -> None:
    """Until a signal."""
    path = locate("demo").path
    paced = arguments[0] == "paced"
    process = (
        paced_engine.start(float(arguments[1]), int(arguments[2])) if paced else start_engine()
    )
    config = FrontConfig(
        host="127.0.0.1",
        port=0,
        grpc_port=0,
        model_names=("demo",),
        limits=Limits(max_queued=MAX_QUEUED),
        max_engine_restarts=0,  # whose engine dies has failed, and is not measured further
        engine=EngineConfig(
            model=str(path),
            dtype="float32",
            max_num_seqs=SEATS,
            num_blocks=NUM_BLOCKS,
            swap_bytes=0,  # likewise
            log_level="warning",
        ),
    )

    def on_ready(ready: Ready, addresses: Addresses) -> None:
        freeze_heap()
        say({"http_port": addresses.http_port, "grpc_port": addresses.grpc_port})

    front = Front(
        config, load_tokenizer(path), process, on_progress=lambda _: None, on_ready=on_ready
    )
    answering = asyncio.ensure_future(_answer(process.pid))
    await front.run()
    answering.cancel()


async def _answer(engine_pid: int) -> None:
    lines = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while await lines.readline():
        gc.collect()
        trim()
        front, engine = _status(os.getpid()), _status(engine_pid)
        say(
            Figures(
                tasks=len(asyncio.all_tasks()),
                descriptors=len(os.listdir("/proc/self/fd")),
                front_kib=front[0],
                engine_kib=engine[0],
                front_cpu_s=front[1],
                engine_cpu_s=engine[1],
            )
        )


def _status(pid: int) -> tuple[int, float]:
    """Anonymous memory that is resident, in KiB, and CPU seconds of all threads."""
    status = Path(f"/proc/{pid}/status").read_text()
    [resident] = [line.split()[1] for line in status.splitlines() if line.startswith("RssAnon")]
    times = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(resident), (int(times[11]) + int(times[12])) / os.sysconf("SC_CLK_TCK")


def say(what: Any) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    configure_logging("error")
    uvloop.run(serve(sys.argv[1:]))
