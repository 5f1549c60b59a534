"""What a GPU makes of the engine: kernels, decode steps, and loads, beside vLLM if it is there.

Llama 3.1 8B with random weights, in bf16: no files, no network. Three tables:

- each kernel against its floor, as `make bench-kernels` prints it
- a decode step with and without CUDA graphs, and what share of the GPU's bandwidth that is at least
- output tokens a second of loads that are all there at the beginning, engine against engine: our
  scheduler and runner in this process, vLLM's `LLM` in the venv that VLLM_VENV names, fed with ids

The exit status is 3 where there is no GPU. **No GPU has run this yet.**
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
import torch

sys.path.append(str(Path(__file__).parent))
import gpu_kernels
from machine import heading
from random_model import LLAMA_8B, load_random, num_weights, transformers_config

from cadenza.engine.device import device_of
from cadenza.engine.models import DecoderConfig, Model
from cadenza.engine.runner import ModelRunner
from cadenza.engine.startup import RunnerParts
from cadenza.policies.decisions import Decisions
from cadenza.policies.profile import Profile
from cadenza.scheduler.config import SchedulerConfig
from cadenza.scheduler.plan import NO_COPIES, StepOutcome, StepPlan
from cadenza.scheduler.request import Arrival
from cadenza.scheduler.scheduler import Scheduler
from cadenza.wire.messages import EngineConfig, Sampling

NO_GPU = 3
ROWS, CONTEXT = (1, 8, 64), 1024  # of decode steps
STEPS = 30  # measured, after some that warm up
_WARM_UP = 5
_TOKENS_A_STEP = 2048
_PEER = Path(__file__).parent / "vllm_engine.py"


class Load(NamedTuple):
    """Requests that are there at once, of so many tokens in and out."""

    requests: int
    input: int
    output: int

    def __str__(self) -> str:
        return f"{self.requests} x {self.input:,}/{self.output}"


LOADS = (Load(1, 128, 128), Load(64, 512, 128), Load(256, 512, 128))


def runner_of(model: Model, *, seats: int, **options: object) -> ModelRunner:
    """Return a runner that captures what it can; options: fields of `EngineConfig`."""
    config = EngineConfig(
        model="random",
        max_num_seqs=seats,
        max_num_batched_tokens=max(_TOKENS_A_STEP, 2 * seats),
        swap_bytes=0,
        **options,  # type: ignore[arg-type]
    )
    greedy = Sampling(temperature=0.0)
    parts = RunnerParts(config, model, lambda _: (greedy, 0), device_of(model.device))
    runner = parts.runner(*parts.caches())
    runner.capture(lambda *_: None)
    return runner


def decode_plan(rows: int, context: int, block_size: int) -> StepPlan:
    """Return a step of rows that each have so many tokens in the cache, whatever they are."""
    numbers, blocks = np.arange(rows, dtype=np.int32), context // block_size + 1
    return StepPlan(
        step_id=0,
        block_size=block_size,
        requests=np.zeros(rows, dtype=np.int64),
        seats=numbers,
        num_context=np.full(rows, context, dtype=np.int32),
        num_new=np.ones(rows, dtype=np.int32),
        num_tokens=rows,
        histories=np.zeros((rows, context + 1), dtype=np.int32),
        tables=np.arange(rows * blocks, dtype=np.int32).reshape(rows, blocks),
        samples=numbers,
        sample_requests=np.zeros(rows, dtype=np.int64),
        sample_seats=numbers,
        seated=(),
        copies=NO_COPIES,
    )


def decode_s(runner: ModelRunner, rows: int, context: int, steps: int) -> float:
    """Seconds of a decode step, from launch to tokens."""
    plan, took_s = decode_plan(rows, context, runner.cache.shape.block_size), []
    for _ in range(_WARM_UP + steps):
        start_s = time.perf_counter()
        runner.execute(plan)
        took_s.append(time.perf_counter() - start_s)
    return median(took_s[_WARM_UP:])


def decode_bytes(config: DecoderConfig, rows: int, context: int) -> int:
    """Bytes that a decode step cannot do without reading: weights, and what rows have cached."""
    cached = 2 * config.num_layers * config.num_kv_heads * config.head_dim * rows * context
    return 2 * (num_weights(config) + cached)


def decode_table(config: DecoderConfig, model: Model, rows: Sequence[int], context: int) -> str:
    lines = ["| rows | context | launched, ms | by graphs, ms | GB/s by graphs |", "|---" * 5 + "|"]
    eager = runner_of(model, seats=max(rows), enforce_eager=True, **_cache_for(max(rows), context))
    captured = runner_of(model, seats=max(rows), **_cache_for(max(rows), context))
    for count in rows:
        launched_s, replayed_s = (
            decode_s(runner, count, context, STEPS) for runner in (eager, captured)
        )
        rate = decode_bytes(config, count, context) / replayed_s / 1e9
        lines.append(
            f"| {count} | {context:,} | {1e3 * launched_s:.2f} | {1e3 * replayed_s:.2f} |"
            f" {rate:,.0f} |"
        )
    return "\n".join(lines)


def _cache_for(rows: int, tokens: int) -> dict[str, int]:
    return {"num_blocks": rows * (tokens // EngineConfig(model="").block_size + 1)}


def serve(runner: ModelRunner, load: Load, vocabulary: int) -> float:
    """Output tokens a second of a load."""
    seats, size = runner.sampler.num_seats, runner.cache.shape.block_size
    config = SchedulerConfig(
        num_blocks=runner.cache.num_blocks,
        block_size=size,
        max_model_len=load.input + load.output,
        max_num_seqs=seats,
        max_num_batched_tokens=max(_TOKENS_A_STEP, 2 * seats),
        enable_prefix_caching=False,
    )
    scheduler = Scheduler(config, Decisions(Profile()))
    for request, prompt in enumerate(prompts(load, vocabulary)):
        arrival = Arrival(request=request, prompt=prompt, max_tokens=load.output)
        scheduler.add(arrival, time.monotonic())
    outcome: StepOutcome | None = None
    start_s, tokens = time.perf_counter(), 0
    while scheduler.has_unfinished:
        report, plan = scheduler.step(time.monotonic(), outcome)
        tokens += int(np.count_nonzero(report.tokens >= 0))
        outcome = runner.launch(plan)() if plan else None
    assert tokens == load.requests * load.output
    return tokens / (time.perf_counter() - start_s)


def prompts(load: Load, vocabulary: int) -> list[np.ndarray]:
    """Return random prompts, the same for everybody."""
    chance = np.random.default_rng(load.requests)
    return list(chance.integers(0, vocabulary, (load.requests, load.input)).astype(np.int32))


def serve_vllm(venv: Path, config: DecoderConfig, loads: Sequence[Load]) -> list[float]:
    """Output tokens a second of each load by vLLM's engine. Raises CalledProcessError."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(transformers_config(config)))
        given = [[prompt.tolist() for prompt in prompts(load, config.vocab_size)] for load in loads]
        work = {"model": folder, "prompts": given, "outputs": [load.output for load in loads]}
        done = subprocess.run(
            [str(venv / "bin" / "python"), str(_PEER)],
            input=json.dumps(work),
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        return [float(rate) for rate in json.loads(done.stdout.splitlines()[-1])]


def serving_table(
    config: DecoderConfig,
    model: Model,
    loads: Sequence[Load],
    theirs: Sequence[float | None],
    **options: object,
) -> str:
    runner = runner_of(model, seats=max(load.requests for load in loads), **options)
    ours = []
    for load in loads:
        serve(runner, load, config.vocab_size)  # warms up
        ours.append(serve(runner, load, config.vocab_size))
    lines = ["| load | ours, tok/s | vLLM, tok/s |", "|---|---|---|"]
    for load, rate, peer in zip(loads, ours, theirs, strict=True):
        lines.append(f"| {load} | {rate:,.0f} | {'-' if peer is None else f'{peer:,.0f}'} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only-look", action="store_true", help="whether there is a GPU")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("There is no NVIDIA GPU, or this build of torch has no CUDA.", file=sys.stderr)
        return NO_GPU
    if options.only_look:
        return 0
    print(heading(), torch.cuda.get_device_name(), "\n", sep="")
    gpu_kernels.main()
    venv = os.environ.get("VLLM_VENV")
    # before our model is there: both want the memory
    theirs = serve_vllm(Path(venv), LLAMA_8B, LOADS) if venv else [None] * len(LOADS)
    model = load_random(LLAMA_8B, torch.device("cuda"))
    print("\n" + decode_table(LLAMA_8B, model, ROWS, CONTEXT), flush=True)
    print("\n" + serving_table(LLAMA_8B, model, LOADS, theirs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
