"""Who may import what, seen from fresh interpreters; and constants that two folders share."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import cadenza.scheduler.scheduler
from cadenza.scheduler.states import FinishReason
from cadenza.wire.messages import Finished


def imported_by(module: str) -> set[str]:
    code = f"import {module}, sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("module", "forbidden"),
    [
        ("cadenza.wire.codec", {"torch", "transformers", "grpc"}),
        ("cadenza.scheduler.scheduler", {"torch", "cadenza.wire", "cadenza.engine"}),
        ("cadenza.policies.decisions", {"torch", "cadenza.scheduler", "cadenza.wire"}),
        ("cadenza.service.front", {"torch", "transformers", "cadenza.scheduler", "cadenza.engine"}),
        ("cadenza.simulator.page", {"torch", "cadenza.wire", "cadenza.engine", "cadenza.service"}),
        ("cadenza.cli.simulate", {"torch", "transformers", "cadenza.engine"}),
        ("cadenza.cli.main", {"torch", "transformers", "numpy", "grpc", "starlette", "asyncio"}),
    ],
)
def test_a_package_stays_within_its_bounds(module: str, forbidden: set[str]):
    assert not imported_by(module) & forbidden


def test_the_scheduler_has_no_clock_no_io_no_threads_and_no_chance():
    folder = Path(cadenza.scheduler.scheduler.__file__).parent
    forbidden = {"asyncio", "os", "random", "select", "socket", "threading", "time", "uuid"}
    for file in folder.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not {name.split(".")[0] for name in names} & forbidden, file.name


def test_finish_reasons_have_the_same_values_on_both_sides():
    assert {reason.name: reason.value for reason in FinishReason} == {
        reason.name: reason.value for reason in Finished
    }
