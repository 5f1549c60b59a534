"""The simulator against two public runs of vLLM, and how long it takes for an hour of a service.

The folder is one with public traces, which are not part of the project:

    sharegpt_multiturn_llama31_300.jsonl    300 requests, and in validation/, for each device,
    vllm019_llama31-8b_DEVICE_requests.jsonl    when vLLM 0.19 took, began and ended each of them
    AzureLLMInferenceTrace_conv.csv    19,366 requests of an hour

The 300 requests are replayed with the preset vllm-like, the step times that are known of the
device, and the limits of vLLM's run; nothing is fitted to it. Of the RTX PRO 6000 the number of
blocks is not published, and memory was never short. Azure's hour is replayed on one core with fcfs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

from cadenza.cli.options import PolicyOptions
from cadenza.cli.profile import configure
from cadenza.scheduler.config import SchedulerConfig
from cadenza.simulator.engine import VirtualEngine
from cadenza.simulator.machines import MACHINES
from cadenza.simulator.readers import read_trace
from cadenza.simulator.run import Run
from cadenza.simulator.simulation import EOS, Simulation
from cadenza.simulator.trace import Trace

sys.path.append(str(Path(__file__).parent))
from machine import heading

MOST_TPOT_ERROR, MOST_E2E_ERROR = 0.05, 0.10
MOST_S = 60.0
AMPLE = 40_000  # blocks


class Measured(NamedTuple):
    """A run of vLLM."""

    device: str
    machine: str
    num_blocks: int
    max_num_seqs: int

    def times(self, folder: Path) -> dict[str, float]:
        """Means of what vLLM says of its requests, in seconds."""
        path = folder / f"validation/vllm019_llama31-8b_{self.device}_requests.jsonl"
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        queued, first, last = (
            np.array([row[name] for row in rows])
            for name in ("queued_ts", "first_token_ts", "last_token_ts")
        )
        further = np.array([row["output_toks"] for row in rows]) - 1
        return {
            "ttft": float((first - queued).mean()),
            "tpot": float(((last - first) / further).mean()),
            "e2e": float((last - queued).mean()),
        }


RUNS = (
    Measured("RTXPRO6000", "rtx-pro-6000-llama-3.1-8b", AMPLE, 128),
    Measured("RTX4090", "rtx-4090-llama-3.1-8b", 2588, 256),
)


def simulate(trace: Trace, profile: str, machine: str, num_blocks: int, max_num_seqs: int) -> Run:
    configured = configure(PolicyOptions(scheduling_policy=profile))
    watermark = configured.config.watermark
    limits = SchedulerConfig(
        num_blocks=num_blocks,
        block_size=16,
        max_model_len=32_768,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=2048,
        eos_token_ids=frozenset({EOS}),
        watermark=0.01 if watermark is None else watermark,
    )
    engine = VirtualEngine(MACHINES[machine], limits.block_size)
    return Simulation(profile, trace, limits, configured.profile, engine).run()


def validate(folder: Path) -> list[dict[str, object]]:
    trace = read_trace(folder / "sharegpt_multiturn_llama31_300.jsonl")
    figures: list[dict[str, object]] = []
    for measured in RUNS:
        run = simulate(
            trace, "vllm-like", measured.machine, measured.num_blocks, measured.max_num_seqs
        )
        real = measured.times(folder)
        simulated = {
            "ttft": float(run.ttft_s.mean()),
            "tpot": float(run.tpot_s.mean()),
            "e2e": float(run.e2e_s.mean()),
        }
        errors = {name: simulated[name] / real[name] - 1 for name in real}
        preemptions = run.statistics.preemptions
        for name in real:
            print(
                f"{measured.device:11} {name:5} vLLM {real[name]:8.4f} s  simulated "
                f"{simulated[name]:8.4f} s  {errors[name]:+.1%}"
            )
        met = abs(errors["tpot"]) <= MOST_TPOT_ERROR and abs(errors["e2e"]) <= MOST_E2E_ERROR
        print(
            f"{measured.device}: {preemptions} preemptions; TPOT within {MOST_TPOT_ERROR:.0%} and "
            f"E2E within {MOST_E2E_ERROR:.0%}: {'met' if met else 'NOT MET'}"
        )
        figures.append({"device": measured.device, "errors": errors, "preemptions": preemptions})
    return figures


def hurry(folder: Path, machine: str, num_blocks: int) -> dict[str, object]:
    trace = read_trace(folder / "AzureLLMInferenceTrace_conv.csv")
    began_s = time.process_time()
    run = simulate(trace, "fcfs", machine, num_blocks, 256)
    took_s = time.process_time() - began_s
    steps = len(run.steps.took_s)
    print(
        f"{len(trace.requests)} requests on {machine}: {steps} steps of {run.span_s:.0f} s, "
        f"{run.queued_s / run.span_s:.0%} of them with a queue, in {took_s:.1f} s of processor "
        f"time ({1e6 * took_s / steps:.0f} us a step), target {MOST_S:g}: "
        f"{'met' if took_s <= MOST_S else 'NOT MET'}"
    )
    return {"machine": machine, "steps": steps, "processor_s": took_s}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="with the public traces")
    parser.add_argument("--only", choices=("vllm", "azure"))
    options = parser.parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    print(heading())
    figures: dict[str, object] = {}
    if options.only != "azure":
        figures["vllm"] = validate(options.folder)
    if options.only != "vllm":
        figures["azure"] = [
            hurry(options.folder, RUNS[0].machine, 20_000),
            hurry(options.folder, RUNS[1].machine, 2588),
        ]
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
