"""The clients that are Python libraries: programs of this folder, each in its client's venv."""

from __future__ import annotations

import json
from collections.abc import Iterator

from tests.clients.case import ROOT, Faulty, Result, Setting, run
from tests.clients.venvs import pinned, venv

PROGRAMS = {"openai_python": "openai", "prometheus_text": "prometheus-client"}


def cases(setting: Setting) -> Iterator[Result]:
    """Every check of every program."""
    for program, distribution in PROGRAMS.items():
        try:
            lines = _run(setting, program, distribution)
        except Faulty as error:
            yield Result(distribution, str(error))
            continue
        for check in map(json.loads, lines):
            yield Result(f"{distribution}: {check['name']}", check["fault"])


def _run(setting: Setting, program: str, distribution: str) -> list[str]:
    python = venv(distribution, [pinned(distribution)]) / "python"
    module = f"tests.clients.{program}"
    said = run([python, "-P", "-m", module, setting.url], PYTHONPATH=str(ROOT))
    if not said:
        raise Faulty("it checked nothing")
    return said.splitlines()
