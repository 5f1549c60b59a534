"""How much longer streams stand still under hostile policies, by what these do and where.

Three processes: the front (the real HTTP application on uvloop), the real engine's loop with its
scheduler, but a model that only takes its time, and clients: some long streams, and bursts of short
requests. Their policies have no opinion in one window, and turn hostile in the next, until all are
found out. What counts is the largest gap between two tokens of a stream in either window; the
difference should stay below twice the budget that policies have in a step. Whatever else the
machine does makes gaps too: the median of some rounds is shown, and the largest difference in any;
and how long the calls took that were interrupted last, the longest of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import uvloop

sys.path += [str(Path(__file__).parent), str(Path(__file__).parents[1])]
import synthetic_engine
from machine import heading
from served_front import ServedFront, front

from cadenza.checkpoints.locate import locate
from cadenza.engine.channel import Channel, ChannelClosed
from cadenza.engine.loop import EngineLoop
from cadenza.engine.policies import EnginePolicies, library_of
from cadenza.policies.contract import ENGINE_HOOKS, FRONT_HOOKS, OBSERVERS
from cadenza.policies.hook_guard import SignalGuard
from cadenza.policies.profile import OBSERVER
from cadenza.policies.runner import BUDGET_S
from cadenza.scheduler.config import SchedulerConfig
from cadenza.scheduler.plan import StepOutcome, StepPlan
from cadenza.scheduler.scheduler import Scheduler
from cadenza.service.engine_client import EngineClient
from cadenza.service.engine_process import start_engine
from cadenza.service.front_policies import FrontPolicies
from cadenza.service.generator import Generator
from cadenza.service.limits import Limits
from cadenza.service.tokenizer import Tokenizer, load_tokenizer
from cadenza.testing import FakeRunner
from cadenza.wire.logging import configure_logging
from cadenza.wire.messages import (
    DescribePolicies,
    PoliciesState,
    PolicyConfig,
    ReleasePolicy,
)
from tests.policies.hostile import KINDS, HostileModule, policy_of

ROLE = (sys.executable, "-P", __file__)

STREAMS = 4
BURST = 6  # requests at once, more than find room in the queue
BURST_EVERY_S = 0.05
STEP_S = 0.010
WORD = 260  # of the demo's vocabulary: every token is sent at once, as none is half a character
ROUNDS = 5
ONE_S, ALL_S = 0.6, 1.5  # a window, for one hook and for all of them: each has to fail three times

FIGURES = ("without", "with", "extra", "worst", "call")

LIMITS = SchedulerConfig(
    num_blocks=1024,
    block_size=16,
    max_model_len=4096,
    max_num_seqs=8,
    max_num_batched_tokens=256,
    eos_token_ids=frozenset({0}),
)

SIDES: dict[str, tuple[Sequence[str], float]] = {
    "engine, one hook": (["plan_budget"], ONE_S),
    "engine, all hooks": (ENGINE_HOOKS, ALL_S),
    "front, one hook": (["gate_arrivals"], ONE_S),
    "front, all hooks": (FRONT_HOOKS, ONE_S),
}


class SlowRunner(FakeRunner):
    """Takes as long as a forward pass, and computes nothing meanwhile."""

    def execute(self, plan: StepPlan) -> StepOutcome:
        due_s = time.perf_counter() + STEP_S
        outcome = super().execute(plan)
        time.sleep(max(0.0, due_s - time.perf_counter()))
        return replace(outcome, tokens=np.full_like(outcome.tokens, WORD))


def config_in(folder: str) -> PolicyConfig:
    """All hooks have hostile policies."""
    hooks = (*ENGINE_HOOKS, *FRONT_HOOKS)
    chosen = {hook: (policy_of(hook),) for hook in hooks if hook not in OBSERVERS}
    chosen[OBSERVER] = tuple(policy_of(hook) for hook in hooks if hook in OBSERVERS)
    return PolicyConfig(chosen=chosen, plugins_dir=folder)


def run_engine(folder: str, fd: str) -> None:
    configure_logging("critical")
    channel = Channel(socket.socket(fileno=int(fd)))
    with SignalGuard() as guard, contextlib.suppress(ChannelClosed):
        policies = EnginePolicies(config_in(folder), guard=guard)
        scheduler = Scheduler(LIMITS, policies.decisions)
        channel.send(
            synthetic_engine.ready(
                max_model_len=LIMITS.max_model_len,
                eos_token_ids=(0,),
                num_blocks=LIMITS.num_blocks,
                block_size=LIMITS.block_size,
                max_num_seqs=LIMITS.max_num_seqs,
                max_num_batched_tokens=LIMITS.max_num_batched_tokens,
            )
        )
        runner = SlowRunner(LIMITS.num_blocks, LIMITS.block_size)
        EngineLoop(channel, scheduler, runner, {}, policies).run()


class Clients:
    """Long streams, bursts of short requests, and when each token came."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._times: list[list[float]] = [[] for _ in range(STREAMS)]

    async def measure(self, module: HostileModule, kind: str, side: str) -> None:
        """Print, for each round, seconds of the largest gap without and with hostile policies.

        After each a line of input says that these policies are as they were.
        """
        hooks, window_s = SIDES[side]
        tasks = [asyncio.create_task(self._read(times)) for times in self._times]
        while not all(self._times):  # noqa: ASYNC110 - nothing is measured here
            await asyncio.sleep(0.01)
        tasks.append(asyncio.create_task(self._come_and_go()))
        for _ in range(ROUNDS):
            without_s = await self._largest_gap(window_s)
            module.arm(kind, hooks)
            with_s = await self._largest_gap(window_s)
            module.disarm()
            print(json.dumps([without_s, with_s]), flush=True)
            await asyncio.to_thread(sys.stdin.readline)
        for task in tasks:
            task.cancel()

    async def _largest_gap(self, window_s: float) -> float:
        start_s = time.perf_counter()
        await asyncio.sleep(window_s)
        windows = [[each for each in times if each >= start_s] for times in self._times]
        return max(later - earlier for window in windows for earlier, later in pairwise(window))

    async def _read(self, times: list[float]) -> None:
        reader = await self._post("Once", 4000)
        while True:
            await reader.readuntil(b"\n\n")
            times.append(time.perf_counter())

    async def _come_and_go(self) -> None:
        while True:
            readers = await asyncio.gather(*[self._post("Hello", 2) for _ in range(BURST)])
            await asyncio.gather(*[reader.read() for reader in readers])
            await asyncio.sleep(BURST_EVERY_S)

    async def _post(self, prompt: str, max_tokens: int) -> asyncio.StreamReader:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        body = {"prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, "stream": True}
        data = json.dumps(body).encode()
        head = "POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n"
        writer.write(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
        await writer.drain()
        reader.connection = writer  # type: ignore[attr-defined] # a writer let go of closes
        return reader


def run_clients(folder: str, port: str, kind: str, side: str) -> None:
    module = HostileModule(Path(folder))
    uvloop.run(Clients(int(port)).measure(module, kind, side))


@contextlib.asynccontextmanager
async def hostile_front(
    tokenizer: Tokenizer, folder: str, guard: SignalGuard
) -> AsyncIterator[ServedFront]:
    """A front that serves, and its engine, both with the policies in `folder`."""
    config = config_in(folder)
    profile = library_of(config).profile(config.chosen, {})
    policies = FrontPolicies(profile, guard=guard, timer=time.monotonic)
    process = start_engine((*ROLE, "engine", folder))
    limits = Limits(max_queued=STREAMS)
    async with front(tokenizer, process, limits=limits, policies=policies) as served:
        yield served


async def measure(tokenizer: Tokenizer, side: str, kind: str) -> dict[str, Any]:
    """One case, on a service of its own."""
    with tempfile.TemporaryDirectory() as folder, SignalGuard() as guard:
        HostileModule(Path(folder))
        async with hostile_front(tokenizer, folder, guard) as served:
            clients = await asyncio.create_subprocess_exec(
                *(*ROLE, "clients", folder, str(served.http_port), kind, side),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            assert clients.stdin is not None
            assert clients.stdout is not None
            rounds, out, errors = [], set(), ""
            for _ in range(ROUNDS):
                rounds.append(json.loads(await clients.stdout.readline()))
                quarantined, told = await release_all(served.generator, served.engine)
                out |= quarantined
                errors += told
                clients.stdin.write(b"\n")
            await clients.wait()
    without_s, with_s = (median(each) for each in zip(*rounds, strict=True))
    return {
        "side": side,
        "kind": kind,
        "without_ms": round(1e3 * without_s, 1),
        "with_ms": round(1e3 * with_s, 1),
        "extra_ms": round(1e3 * (with_s - without_s), 1),
        "worst_ms": round(1e3 * max(later - earlier for earlier, later in rounds), 1),
        "call_ms": max(
            map(float, re.findall(r"interrupted after ([\d.]+) ms", errors)), default=0.0
        ),
        "quarantined": len(out),
    }


async def release_all(generator: Generator, engine: EngineClient) -> tuple[set[str], str]:
    """Ask all policies again; those that were quarantined, and their last errors."""
    state = await engine.ask(DescribePolicies)
    assert isinstance(state, PoliciesState)
    for policy in state.live.quarantined:
        await engine.ask(lambda number, policy=policy: ReleasePolicy(number, policy))
    ours = generator.policies.quarantined
    for policy in ours:
        generator.policies.release(policy)
    failed = (*state.live.faults, *generator.policies.hook_faults)
    errors = [each.last_error for each in failed]
    return {*ours, *state.live.quarantined}, "\n".join(errors)


def show(result: dict[str, Any]) -> None:
    figures = "".join(f"{result[f'{name}_ms']:10.1f}" for name in FIGURES)
    print(f"{result['side']:20}{result['kind']:20}{figures}{result['quarantined']:13}", flush=True)


def measure_all() -> None:
    configure_logging("critical")
    print(heading())
    print(
        f"The largest gap between tokens of {STREAMS} streams, a step every {1e3 * STEP_S:.0f} ms,"
    )
    print(f"in ms; the extra should stay under {2e3 * BUDGET_S:.0f}, twice the policies' budget.")
    columns = "".join(f"{name:>10}" for name in FIGURES)
    print(f"{'side':20}{'kind':20}{columns}{'quarantined':>13}")
    tokenizer, results = load_tokenizer(locate("demo").path), []
    gc.freeze()  # as a front does once it serves
    for side in SIDES:
        for kind in KINDS:
            results.append(uvloop.run(measure(tokenizer, side, kind)))
            show(results[-1])
    print(json.dumps({"policies": results}))


def main() -> None:
    roles: dict[str, Callable[..., None]] = {
        "engine": lambda folder, _, fd, *__: run_engine(folder, fd),
        "clients": run_clients,
    }
    role, arguments = (sys.argv[1:2] or [""])[0], sys.argv[2:]
    roles.get(role, measure_all)(*arguments)


if __name__ == "__main__":
    main()
