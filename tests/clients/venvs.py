"""A venv for each client, made once, with the version that constraints.txt has."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.clients.case import ROOT, Faulty

FOLDER = ROOT / ".clients"


def pinned(distribution: str) -> str:
    """The requirement that constraints.txt has for it."""
    pins = (ROOT / "constraints.txt").read_text()
    found = re.search(rf"^{re.escape(distribution)}==.+$", pins, re.MULTILINE)
    assert found, f"constraints.txt has no {distribution}"
    return found[0]


def torch() -> list[str]:
    """The words that install torch, as the Makefile chooses its build."""
    return os.environ.get("TORCH_SPEC", "").split() or [pinned("torch")]


def venv(name: str, *steps: Sequence[str]) -> Path:
    """The folder of programs of a venv, after one pip install a step.

    Raises:
        Faulty: an install failed.
    """
    folder = FOLDER / name
    stamp, wanted = folder / "installed", "\n".join(" ".join(step) for step in steps)
    if not stamp.exists() or stamp.read_text() != wanted:
        sys.stdout.write(f"installing {name} into {folder}\n")
        sys.stdout.flush()
        _install([sys.executable, "-m", "venv", "--clear", str(folder)])
        for step in steps:
            pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
            _install([*pip, "install", "--quiet", *step])
        stamp.write_text(wanted)
    return folder / "bin"


def _install(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise Faulty(f"{' '.join(command)}\n{done.stderr[-2000:]}")
