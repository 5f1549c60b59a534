"""Same seed, same decisions: records, plans and tokens, in every process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from cadenza.scheduler.report import StepReport
from tests.scheduler.random_lives import RandomLife

SEEDS = range(5000, 5008)
STEPS = 120
ROOT = Path(__file__).parents[2]


def in_full(array: np.ndarray) -> str:
    """Every element, and no time for a layout."""
    return f"{array.dtype}{array.tolist()}"


class TracedLife(RandomLife):
    """Keeps every report, with its records, and every plan, as text."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.trace = [repr(self.driver.scheduler.config)]

    def step(self) -> StepReport:
        report = super().step()
        with np.printoptions(override_repr=in_full):
            self.trace.append(f"{self.name}: {report} {self.driver.plan}")
        return report


def trace_of(seed: int) -> list[str]:
    life = TracedLife(seed)
    life.live(STEPS)
    return life.trace


def trace_of_another_process(hash_seed: int) -> list[str]:
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "tests.scheduler.test_determinism"],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([*paths, str(ROOT)]),
            "PYTHONHASHSEED": str(hash_seed),
        },
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def first_difference(one: list[str], other: list[str]) -> tuple[str, str] | None:
    if len(one) != len(other):
        return f"{len(one)} lines", f"{len(other)} lines"
    return next((pair for pair in zip(one, other, strict=True) if pair[0] != pair[1]), None)


def test_the_same_seed_takes_the_same_decisions_twice_in_one_process():
    assert first_difference(trace_of(SEEDS[0]), trace_of(SEEDS[0])) is None


def test_decisions_do_not_depend_on_the_seed_of_hashes():
    """Two processes in which sets and dictionaries of strings are in another order."""
    one, other = trace_of_another_process(1), trace_of_another_process(2)

    assert len(one) > STEPS * len(SEEDS)
    assert any("Preempted" in line for line in one)
    assert first_difference(one, other) is None


def test_another_seed_takes_other_decisions():
    """Or the traces would not show anything."""
    assert first_difference(trace_of(SEEDS[0]), trace_of(SEEDS[1])) is not None


if __name__ == "__main__":
    for each in SEEDS:
        sys.stdout.write("\n".join([*trace_of(each), ""]))
