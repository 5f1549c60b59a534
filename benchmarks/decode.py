"""Milliseconds a decode step, and prompt tokens a second, of the demo model.

The floor is reading the weights once from memory, which any step has to do.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import gguf
import torch

from cadenza.checkpoints.locate import locate
from cadenza.engine.runner import ModelRunner, build_runner
from cadenza.scheduler.plan import StepOutcome, StepPlan
from cadenza.testing import Driver
from cadenza.wire.messages import EngineConfig, Sampling

sys.path.append(str(Path(__file__).parent))
from machine import heading

ROWS = (1, 8, 32)
STEPS = 16
PREFILLS = 3
PROMPT, PREFILL = 64, 512  # tokens
GREEDY = Sampling(temperature=0.0)

LIMITS = {
    "num_blocks": 512,
    "block_size": 16,
    "max_model_len": 1024,
    "max_num_seqs": max(ROWS),
    "max_num_batched_tokens": max(PREFILL, max(ROWS) * PROMPT),
}


class Timed:
    """A runner that notes how long each step took: forward pass and sampling."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self.steps_s: list[float] = []

    def execute(self, plan: StepPlan) -> StepOutcome:
        started = time.perf_counter()
        outcome = self._runner.execute(plan)
        self.steps_s.append(time.perf_counter() - started)
        return outcome


def load(dtype: str) -> ModelRunner:
    limits = {name: value for name, value in LIMITS.items() if name != "max_model_len"}
    config = EngineConfig(model=str(locate("demo").path), dtype=dtype, **limits)
    runner, _ = build_runner(config, lambda request: (GREEDY, 0), lambda *_: None)
    return runner


def run(runner: ModelRunner, rows: int, prompt: int, max_tokens: int) -> list[float]:
    """Seconds of every step; all rows arrive at once, so that the first is the whole prefill."""
    timed = Timed(runner)
    limits: dict[str, Any] = {
        **LIMITS,
        "eos_token_ids": frozenset(),
        "enable_prefix_caching": False,
    }
    driver = Driver(runner=timed, **limits)
    for row in range(rows):
        driver.add(row, [100 + row + place for place in range(prompt)], max_tokens=max_tokens)
    driver.run()
    return timed.steps_s


def decode_ms(runner: ModelRunner, rows: int) -> float:
    _, *decodes = run(runner, rows, PROMPT, STEPS + 1)
    return 1e3 * median(decodes)


def prefill_tokens_s(runner: ModelRunner) -> float:
    return PREFILL / median(run(runner, 1, PREFILL, 1)[0] for _ in range(PREFILLS))


def weight_bytes(dtype: torch.dtype) -> int:
    tensors = gguf.GGUFReader(locate("demo").path).tensors
    return sum(int(tensor.n_elements) for tensor in tensors) * dtype.itemsize


def read_ms(num_bytes: int) -> float:
    """Summing a buffer of this size, by as many threads as the model has; the best of five."""
    buffer = torch.ones(num_bytes // 4, dtype=torch.float32)
    times = []
    for _ in range(5):
        started = time.perf_counter()
        buffer.sum()
        times.append(time.perf_counter() - started)
    return 1e3 * min(times)


def measure(dtype: str) -> dict[str, Any]:
    """Every figure of one dtype."""
    floor_ms = read_ms(weight_bytes(getattr(torch, dtype)))
    runner = load(dtype)
    run(runner, 1, PROMPT, 4)  # warms up
    return {
        "dtype": dtype,
        "read_weights_ms": round(floor_ms, 2),
        "decode_ms": {str(rows): round(decode_ms(runner, rows), 2) for rows in ROWS},
        "prefill_tokens_s": round(prefill_tokens_s(runner), 1),
    }


def main() -> None:
    print(heading())
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}, {PROMPT} tokens before")
    print(f"{'':10}{'rows':>6}{'ms/step':>10}{'tokens/s':>10}{'floor ms':>10}{'ratio':>8}")
    results = [measure(dtype) for dtype in ("float32", "bfloat16")]
    for result in results:
        floor_ms = result["read_weights_ms"]
        for rows, took_ms in result["decode_ms"].items():
            rate = 1e3 * int(rows) / took_ms
            ratio = took_ms / floor_ms
            name = result["dtype"]
            print(f"{name:10}{rows:>6}{took_ms:10.1f}{rate:10.0f}{floor_ms:10.1f}{ratio:8.1f}")
        print(
            f"{result['dtype']:10} prefill of {PREFILL}: {result['prefill_tokens_s']:.0f} tokens/s"
        )
    print(json.dumps({"threads": torch.get_num_threads(), "decode": results}))


if __name__ == "__main__":
    main()
