"""Where a step's time goes: parts of the engine's loop, and the front process beside it.

A front with the engine of `timed_engine.py` serves streams of completions to clients that cost
little. All streams begin together: while their prompts are computed, steps are of that; from the
first to the last moment that all of them run, a step decodes one token of each. The front works
beside the engine, on another core if there is one: what it takes is its process's CPU time.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

import uvloop

sys.path.append(str(Path(__file__).parent))
import clients
from served_front import ServedFront, Totals, front
from serving_load import Load
from timed_engine import PARTS, Step

from cadenza.service.engine_process import start_engine
from cadenza.service.tokenizer import load_tokenizer
from cadenza.wire.heap import freeze_heap
from cadenza.wire.messages import EngineConfig

FRONT = "front process, beside"
_ENGINE = (sys.executable, "-P", str(Path(__file__).with_name("timed_engine.py")))


class Stage(NamedTuple):
    """Steps of one kind under one load."""

    load: Load
    kind: str  # "prefill" or "decode"
    tokens: float  # a step computes
    ms: dict[str, float]  # by part, the median step


class _Window(NamedTuple):
    """When the streams of a load were asked for, had all begun, and had ended."""

    load: Load
    asked_s: float
    begun_s: float
    ended_s: float
    front: Totals  # what the front did from `begun_s` on


def measure(config: EngineConfig, loads: Sequence[Load]) -> list[Stage]:
    """Serve each load once, after one that warms up."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "steps.json"
        windows = uvloop.run(_serve(config, loads, path))
        steps = [Step(*step) for step in json.loads(path.read_text())]
    return [stage for window in windows for stage in _stages(window, steps)]


async def _serve(config: EngineConfig, loads: Sequence[Load], path: Path) -> list[_Window]:
    tokenizer = load_tokenizer(config.model)
    freeze_heap()
    process = start_engine((*_ENGINE, str(path)))
    async with front(tokenizer, process, config=config) as served:
        await _stream(served, loads[0], seed=0)
        return [await _stream(served, load, seed) for seed, load in enumerate(loads, 1)]


async def _stream(served: ServedFront, load: Load, seed: int) -> _Window:
    """Let clients have a load's streams, of prompts that no other seed has."""
    numbers = served.http_port, load.streams, load.streams, load.output, load.input, seed
    asked_s = time.perf_counter()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", clients.__file__, "completions", *map(str, numbers)),
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert json.loads(await process.stdout.readline()) == {"begun": load.streams}
    begun_s, before = time.perf_counter(), Totals.now(served.generator)
    told = json.loads(await process.stdout.readline())
    ended_s, passed = time.perf_counter(), Totals.now(served.generator) - before
    assert await process.wait() == 0
    assert told["whole"] == load.streams, told
    await served.rest()
    return _Window(load, asked_s, begun_s, ended_s, passed)


def _stages(window: _Window, steps: Sequence[Step]) -> Iterator[Stage]:
    """The steps that computed prompts, and those that decoded all streams."""
    load = window.load
    within = [step for step in steps if window.asked_s <= step.begun_s < window.ended_s]
    prefills = [step for step in within if step.tokens > step.rows]
    decodes = [step for step in within if step.tokens == step.rows == load.streams]
    front_ms = 1e3 * window.front.cpu_s / window.front.tokens * load.streams
    yield Stage(load, "prefill", median(step.tokens for step in prefills), _ms(prefills))
    yield Stage(load, "decode", load.streams, _ms(decodes) | {FRONT: front_ms})


def _ms(steps: Sequence[Step]) -> dict[str, float]:
    return {part: 1e3 * median(step.took_s.get(part, 0.0) for step in steps) for part in PARTS}


def show(stages: Sequence[Stage]) -> None:
    """Print a column for each stage."""
    heads = [f"{stage.kind} {stage.load.streams}" for stage in stages]
    print(f"{'ms a step':24}" + "".join(f"{head:>18}" for head in heads))
    print(f"{'tokens':24}" + "".join(f"{stage.tokens:>18,.0f}" for stage in stages))
    for part in PARTS:
        print(f"{part:24}" + "".join(f"{_cell(stage, part):>18}" for stage in stages))
    print(f"{'all of these':24}" + "".join(f"{_whole(stage):18.2f}" for stage in stages))
    front = (f"{stage.ms[FRONT]:.2f}" if FRONT in stage.ms else "" for stage in stages)
    print(f"{FRONT:24}" + "".join(f"{cell:>18}" for cell in front), flush=True)


def _whole(stage: Stage) -> float:
    return sum(stage.ms[part] for part in PARTS)


def _cell(stage: Stage, part: str) -> str:
    return f"{stage.ms[part]:.2f} ({stage.ms[part] / _whole(stage):4.0%})"


def figures(stages: Sequence[Stage]) -> list[dict[str, object]]:
    """Return what a program reads of them."""
    return [
        {
            "kind": stage.kind,
            "streams": stage.load.streams,
            "tokens": stage.tokens,
            "ms": {part: round(ms, 3) for part, ms in stage.ms.items()},
        }
        for stage in stages
    ]
