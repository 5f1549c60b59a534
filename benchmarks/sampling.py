"""Microseconds that a step's rows take to sample, or to tell log-probabilities of.

The C++ kernels are measured beside the references, in turns.

Time of the processor on one thread, without what other processes take; the best of some rounds.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cadenza.kernels import logprobs
from cadenza.kernels.sampling import SETTINGS, SettingsArray, native, sample_reference

sys.path.append(str(Path(__file__).parent))
from machine import heading

VOCAB = 49_152
ROWS = (1, 32)
SPREAD = 3.0  # of the logits, about as the demo model's
KINDS: dict[str, dict[str, float]] = {
    "greedy": {"temperature": 0.0},
    "temperature": {"temperature": 0.8},
    "top-k 50, top-p 0.95": {"temperature": 0.8, "top_k": 50, "top_p": 0.95},
    "top-p 0.95": {"temperature": 0.8, "top_p": 0.95},
    "min-p 0.05": {"temperature": 0.8, "min_p": 0.05},
}
BEST = 5  # tokens whose log-probabilities are told
ROUNDS = 12
LEAST_S = 2e-3  # of a round: a kernel takes microseconds


def settings(rows: int, kind: dict[str, float]) -> SettingsArray:
    made = np.zeros(rows, dtype=SETTINGS)
    made["top_p"] = 1.0
    made["seed"] = np.arange(rows)
    for name, value in kind.items():
        made[name] = value
    return made


def seconds(sample: Callable[[], Any]) -> float:
    times, started = 0, time.thread_time()
    while (took := time.thread_time() - started) < LEAST_S:
        sample()
        times += 1
    return took / times


Kernels = dict[str, Callable[[], Any]]
"""Who computes: the levels but those above AVX-512, which do as it does; and the reference."""


def samplers(logits: torch.Tensor, kind: dict[str, float]) -> Kernels:
    chosen = settings(len(logits), kind)
    kernels: Kernels = {
        level: lambda level=level: native.sample(logits, chosen, {}, level)
        for level in native.levels()[:3]
    }
    return {**kernels, "reference": lambda: sample_reference(logits, chosen, {})}


def tellers(logits: torch.Tensor) -> Kernels:
    asked = list(range(len(logits))), [7] * len(logits), [BEST] * len(logits)
    kernels: Kernels = {
        level: lambda level=level: logprobs.native.logprobs(logits, *asked, level)
        for level in native.levels()[:3]
    }
    return {**kernels, "reference": lambda: logprobs.logprobs_reference(logits, *asked)}


def measure(kernels: Kernels) -> dict[str, float]:
    """Microseconds by who computes."""
    best = dict.fromkeys(kernels, float("inf"))
    for _ in range(ROUNDS):
        for name, kernel in kernels.items():
            best[name] = min(best[name], seconds(kernel))
    return {name: round(1e6 * took, 1) for name, took in best.items()}


@torch.inference_mode()
def main() -> None:
    print(heading())
    torch.set_num_threads(1)
    results = []
    print(f"us a step's rows of {VOCAB} logits; ratio: the reference's to the last level's")
    for name in (*KINDS, f"{BEST} log-probabilities"):
        for rows in ROWS:
            logits = torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(0)) * SPREAD
            us = measure(samplers(logits, KINDS[name]) if name in KINDS else tellers(logits))
            results.append({"kind": name, "rows": rows, "us": us})
            *_, fastest, reference = us.values()
            shown = "   ".join(f"{who} {took:.1f}" for who, took in us.items())
            print(f"{name:22} rows {rows:<3} {shown}   ratio {reference / fastest:.0f}")
    print(json.dumps({"sampling": results}))


if __name__ == "__main__":
    main()
