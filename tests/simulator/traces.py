"""Small traces, and runs of them that take milliseconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cadenza.policies.profile import Profile
from cadenza.scheduler.config import SchedulerConfig
from cadenza.simulator.engine import VirtualEngine
from cadenza.simulator.machines import Machine
from cadenza.simulator.run import Run
from cadenza.simulator.simulation import EOS, Simulation
from cadenza.simulator.step_time import StepTime
from cadenza.simulator.study import Study, report
from cadenza.simulator.summary import Targets
from cadenza.simulator.trace import WHOLE, Span, Trace, TraceRequest

STEADY = Machine(name="steady", source="tests", step_time=StepTime(fixed_s=0.01))


def trace_of(*requests: TraceRequest, block_tokens: int = 4) -> Trace:
    return Trace(source="tests", kind="made", requests=requests, block_tokens=block_tokens)


def limits(**given: Any) -> SchedulerConfig:
    small: dict[str, Any] = {
        "num_blocks": 64,
        "block_size": 4,
        "max_model_len": 128,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 64,
        "eos_token_ids": frozenset({EOS}),
        "watermark": 0.0,
    }
    return SchedulerConfig(**{**small, **given})


def run_of(
    trace: Trace,
    profile: Profile | None = None,
    machine: Machine = STEADY,
    *,
    name: str = "fcfs",
    max_tokens: int = 0,
    measured: Span = WHOLE,
    **given: Any,
) -> Run:
    config = limits(**given)
    engine = VirtualEngine(machine, config.block_size)
    simulation = Simulation(
        name,
        trace,
        config,
        profile or Profile(),
        engine,
        max_tokens=max_tokens,
        measured=measured,
    )
    return simulation.run()


def told_of(runs: Sequence[Run], targets: Targets) -> dict[str, Any]:
    """The report of runs of one trace."""
    return report(runs, Study(trace=runs[0].trace, machine=STEADY, targets=targets))
