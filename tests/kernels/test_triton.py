"""The Triton kernels: interpreted, compiled ahead of time, and on a GPU.

An interpreted kernel is one from its definition on and an interpreter is slow, so each of the three
is a process of its own, which runs all cases of `on_triton` or compiles all launches.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.kernels.compiling import SHARED_LIMITS, TARGETS, Resources

ROOT = Path(__file__).parents[2]
CASES = ROOT / "tests" / "kernels" / "on_triton"
ALL_CASES = sorted(path.stem for path in CASES.glob("*.py") if path.stem != "conftest")
PAGE = ROOT / "docs" / "gpu-kernels.md"


def _run(*arguments: str, **environment: str) -> str:
    variables = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, "-P", "-m", *arguments],
        # on many threads the interpreter's small products take longer
        env={**variables, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _run_cases(marker: str, *cases: str, **environment: str) -> None:
    arguments = ["-p", "no:cacheprovider", "-m", marker]
    _run("pytest", *arguments, *(str(CASES / f"{name}.py") for name in cases), **environment)


def _compiled(cache: Path, *targets: int) -> list[Resources]:
    """Compile with a cache of its own, so that the compiler really runs."""
    told = _run(
        "tests.kernels.compiling",
        *map(str, targets),
        TRITON_CACHE_DIR=str(cache),
        TRITON_DEFAULT_FP_FUSION="1",
    )
    return [Resources(**json.loads(line)) for line in told.splitlines()]


def _row(found: Resources) -> str:
    return (
        f"| `{found.kernel}` | {found.launch} | sm_{found.target} | {found.warps} |"
        f" {found.registers} | {found.spilled} | {found.shared:,} |"
    )


@pytest.mark.timeout(240)  # 40 s of a core, and more where it is shared
def test_interpreted_kernels_pass_their_cases() -> None:
    _run_cases("not extra", *ALL_CASES, TRITON_INTERPRET="1")


@pytest.mark.extra
@pytest.mark.timeout(900)  # 75 s of a core, and more where it is shared
def test_kernels_compile_ahead_of_time_and_spill_nothing(tmp_path: Path) -> None:
    """The page's table of resources is what the compiler says."""
    found = _compiled(tmp_path, *TARGETS)

    assert {kernel.target for kernel in found} == set(TARGETS)
    told = [row for row in PAGE.read_text().splitlines() if "| sm_" in row]
    assert told == [_row(kernel) for kernel in found]
    for kernel in found:
        assert kernel.spilled == 0, kernel
        assert kernel.shared <= SHARED_LIMITS[kernel.target], kernel
        if re.match("decode", kernel.launch):
            assert kernel.registers <= 128, kernel


@pytest.mark.extra
@pytest.mark.timeout(600)  # 30 s of a core, and more where it is shared
def test_interpreted_kernels_pass_their_slower_cases() -> None:
    _run_cases("extra", *ALL_CASES, TRITON_INTERPRET="1")


@pytest.mark.extra
def test_the_page_has_the_floors_that_the_benchmark_prints() -> None:
    script = ROOT / "benchmarks" / "gpu_kernels.py"
    code = f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')"
    command = [sys.executable, "-P", "-c", code]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    told = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)

    rows = told.stdout.splitlines()
    page = PAGE.read_text().splitlines()
    start = page.index(rows[0])
    # below the heading there is a line of dashes
    assert page[start + 2 : page.index("", start)] == rows[1:]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_kernels_pass_their_cases_on_a_gpu() -> None:
    _run_cases("extra or not extra", *ALL_CASES)
