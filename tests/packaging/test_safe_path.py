"""From the repository's root no folder of ours may pass for another's package of that name."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

_STARTED = re.compile(r"""sys\.executable,\s*["'](-\w+)""")


def from_the_root(code: str, *flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *flags, "-c", code], cwd=ROOT, capture_output=True, text=True
    )


@pytest.mark.parametrize("folder", ["kernels", "scheduler", "engine", "service", "policies"])
def test_our_folders_are_no_packages_of_their_own(folder: str):
    done = from_the_root(f"import {folder}", "-P")

    assert done.stderr.rstrip().endswith(f"ModuleNotFoundError: No module named '{folder}'")


def test_without_the_safe_path_they_would_be():
    """What -P is for; if this fails, the flag is no longer needed."""
    assert from_the_root("import kernels").returncode == 0


def test_the_makefile_runs_python_with_the_safe_path():
    makefile = (ROOT / "Makefile").read_text()

    assert "PYTHON := $(VENV)/bin/python -P\n" in makefile
    bare = [line for line in makefile.splitlines() if re.search(r"bin/python(?! -P)", line)]
    assert all("-m pip" in line or "-m venv" in line for line in bare), bare


def test_whoever_starts_python_says_so():
    """In the product, its examples and benchmarks. The engine process is always among them."""
    started = {
        (str(file.relative_to(ROOT)), flag)
        for folder in ("benchmarks", "cli", "engine", "examples", "service")
        for file in (ROOT / folder).rglob("*.py")
        for flag in _STARTED.findall(file.read_text())
    }

    assert ("service/engine_process.py", "-P") in started
    assert {flag for _, flag in started} == {"-P"}
