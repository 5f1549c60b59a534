"""Random lives: whatever arrives, is chunked, preempted or dropped, every token is right."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.scheduler.random_lives import KINDS, seen_in

STEPS = 24_000
GROUPS = 4
SECONDS = 60
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("group", range(GROUPS))
def test_random_lives_lose_and_double_nothing(group: int):
    """Each step is recounted, and each token compared with what the request gets alone."""
    seen = seen_in(1000 * group, STEPS // GROUPS)

    assert not [kind for kind in KINDS if not seen[kind]], "this no longer happens"


@pytest.mark.extra
@pytest.mark.timeout(2 * SECONDS)
def test_many_more_random_lives(tell: Callable[[str], None]):
    """As many steps as fit the time, on every core; how many is printed."""
    cores = os.cpu_count() or 1
    limits = ["--seconds", str(SECONDS), "--operations", "0"]
    soaks = [
        subprocess.Popen(
            [sys.executable, "-P", "-m", "tests.scheduler.soak", str(10**6 * (core + 1)), *limits],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([*_paths(), str(ROOT)])},
            stdout=subprocess.PIPE,
            text=True,
        )
        for core in range(cores)
    ]
    outputs = [soak.communicate()[0] for soak in soaks]
    assert [soak.returncode for soak in soaks] == [0] * cores, "the output above names the seed"

    seen: Counter[str] = Counter()
    for output in outputs:
        seen += Counter(json.loads(output.splitlines()[-1]))
    tell(f"{seen['steps']} random steps in {SECONDS} s on {cores} cores")
    assert not [kind for kind in KINDS if not seen[kind]]


def _paths() -> list[str]:
    return [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
