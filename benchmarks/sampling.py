"""Microseconds that a step's rows take to sample: the C++ kernels beside the reference, in turns.

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


@torch.inference_mode()
def measure(rows: int, kind: dict[str, float]) -> dict[str, float]:
    """Microseconds of all rows, by who samples."""
    logits = torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(0)) * SPREAD
    chosen = settings(rows, kind)
    samplers: dict[str, Callable[[], Any]] = {
        level: lambda level=level: native.sample(logits, chosen, {}, level)
        for level in native.levels()[:3]  # those above AVX-512 sample as it does
    }
    samplers["reference"] = lambda: sample_reference(logits, chosen, {})
    best = dict.fromkeys(samplers, float("inf"))
    for _ in range(ROUNDS):
        for name, sample in samplers.items():
            best[name] = min(best[name], seconds(sample))
    return {name: round(1e6 * took, 1) for name, took in best.items()}


def main() -> None:
    print(heading())
    torch.set_num_threads(1)
    results = []
    print(f"us to sample rows of {VOCAB} logits; ratio: the reference's to the last level's")
    for name, kind in KINDS.items():
        for rows in ROWS:
            us = measure(rows, kind)
            results.append({"kind": name, "rows": rows, "us": us})
            *_, fastest, reference = us.values()
            shown = "   ".join(f"{who} {took:.1f}" for who, took in us.items())
            print(f"{name:22} rows {rows:<3} {shown}   ratio {reference / fastest:.0f}")
    print(json.dumps({"sampling": results}))


if __name__ == "__main__":
    main()
