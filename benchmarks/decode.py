"""Milliseconds a decode step, and prompt tokens a second, of the demo model; and its products.

The floor is reading the weights once from memory, which any step has to do. Steps whose products
are oneDNN's are measured in turns with those whose products are our own, steps of int8 products
with those of bf16.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import gguf
import torch

from cadenza.checkpoints.locate import locate
from cadenza.engine.runner import ModelRunner
from cadenza.engine.startup import build_runner
from cadenza.kernels.linear import backend, native
from cadenza.scheduler.plan import StepOutcome, StepPlan
from cadenza.testing import Driver
from cadenza.testing.fake_runner import SteppedRunner
from cadenza.wire.messages import EngineConfig, Sampling

sys.path.append(str(Path(__file__).parent))
import products
from machine import heading

ROWS = (1, 8, 32)
STEPS = 16
ROUNDS = 3
PROMPT, PREFILL = 64, 512  # tokens
GREEDY = Sampling(temperature=0.0)

LIMITS = {
    "num_blocks": 512,
    "block_size": 16,
    "max_model_len": 1024,
    "max_num_seqs": max(ROWS),
    "max_num_batched_tokens": max(PREFILL, max(ROWS) * PROMPT),
}


class Timed(SteppedRunner):
    """A runner that notes how long each step took: forward pass and sampling."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self.steps_s: list[float] = []

    def execute(self, plan: StepPlan) -> StepOutcome:
        started = time.perf_counter()
        outcome = self._runner.execute(plan)
        self.steps_s.append(time.perf_counter() - started)
        return outcome


def load(dtype: str, quantization: str = "none") -> ModelRunner:
    limits: dict[str, Any] = {k: value for k, value in LIMITS.items() if k != "max_model_len"}
    path = str(locate("demo").path)
    config = EngineConfig(model=path, dtype=dtype, quantization=quantization, **limits)
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


def runners(dtype: str) -> dict[str, ModelRunner]:
    """Return a runner for each that can multiply, by its name; warmed up."""
    if dtype == "int8":
        found = {"int8": load("bfloat16", "int8"), backend(torch.bfloat16): load("bfloat16")}
    else:
        found = {backend(getattr(torch, dtype)): load(dtype)}
        with mock.patch.object(native, "is_supported", return_value=False):
            if (other := backend(getattr(torch, dtype))) not in found:
                found[other] = load(dtype)
    for runner in found.values():
        run(runner, 1, PROMPT, 4)
    return found


def decode_ms(runner: ModelRunner, rows: int) -> float:
    _, *decodes = run(runner, rows, PROMPT, STEPS + 1)
    return 1e3 * median(decodes)


def prefill_ms(runner: ModelRunner) -> float:
    return 1e3 * run(runner, 1, PREFILL, 1)[0]


def weight_bytes(dtype: torch.dtype) -> int:
    """Of the layers and the head, which is not quantised: it is the embedding."""
    sizes = {
        each.name: int(each.n_elements) for each in gguf.GGUFReader(locate("demo").path).tensors
    }
    head = sizes.pop("token_embd.weight")
    return sum(sizes.values()) * dtype.itemsize + head * max(dtype.itemsize, 2)


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
    """Every figure of one dtype, or of int8 products; the best of some rounds."""
    num_bytes = weight_bytes(getattr(torch, dtype))
    floor_ms = read_ms(num_bytes)
    steps: dict[str, dict[str, float]] = {}
    by_name = runners(dtype)
    for _ in range(ROUNDS):
        for name, runner in by_name.items():
            took = {str(rows): decode_ms(runner, rows) for rows in ROWS}
            took[f"prefill of {PREFILL}"] = prefill_ms(runner)
            before = steps.get(name, took)
            steps[name] = {what: round(min(ms, before[what]), 2) for what, ms in took.items()}
    return {
        "dtype": dtype,
        "read_weights_ms": round(floor_ms, 2),
        "bytes_s": 1e3 * num_bytes / floor_ms,
        "step_ms": steps,
        "products": products.products(getattr(torch, dtype)),
    }


def show(result: dict[str, Any]) -> None:
    floor_ms = result["read_weights_ms"]
    print(f"{result['dtype']}, ms a step by rows; reading the weights takes {floor_ms:.1f} ms")
    names = list(result["step_ms"])
    print(f"{'':16}" + "".join(f"{name:>22}" for name in names))
    for what in result["step_ms"][names[0]]:
        took = [result["step_ms"][name][what] for name in names]
        print(
            f"{what:16}"
            + "".join(f"{f'{ms:.1f} ({ms / floor_ms:.1f} floors)':>22}" for ms in took)
            + f"   ratio {took[-1] / took[0]:.2f}"
        )
    products.show(result["dtype"], result["products"], result["bytes_s"])
    print()


def main() -> None:
    print(heading())
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}, {PROMPT} tokens before\n")
    results = [measure(dtype) for dtype in ("float32", "bfloat16", "int8")]
    for result in results:
        show(result)
    print(json.dumps({"threads": torch.get_num_threads(), "decode": results}))


if __name__ == "__main__":
    main()
