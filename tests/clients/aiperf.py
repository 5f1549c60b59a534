"""aiperf, over either endpoint, and leaving in the middle of every other answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.clients.case import Result, Setting, expect, judged, run
from tests.clients.venvs import pinned, venv

NUM, OUTPUT = 6, 16
LEAVING = ("--request-cancellation-rate", "50", "--request-cancellation-delay", "0.2")


def cases(setting: Setting) -> Iterator[Result]:
    """Each endpoint, as the client's own report has it."""
    for kind in ("chat", "completions"):
        yield judged(f"aiperf: {kind}", lambda kind=kind: _load(setting, kind))
        yield judged(f"aiperf: {kind}, leaving", lambda kind=kind: _leave(setting, kind))


def _load(setting: Setting, kind: str) -> None:
    told = _profile(setting, kind, OUTPUT, "whole")
    expect(_count(told, "request_count"), NUM, "requests")
    expect(_count(told, "error_request_count"), 0, "errors")
    expect(_count(told, "total_usage_completion_tokens"), NUM * OUTPUT, "tokens")


def _leave(setting: Setting, kind: str) -> None:
    """How many do leave is a matter of luck; nothing else may go wrong."""
    told = _profile(setting, kind, 10 * OUTPUT, "leaving", *LEAVING)
    left = sum(
        each["count"]
        for each in told["error_summary"]
        if each["error_details"]["type"] == "RequestCancellationError"
    )
    expect(_count(told, "error_request_count"), left, "errors")
    expect(_count(told, "request_count") + left, NUM, "requests")


def _profile(setting: Setting, kind: str, output: int, name: str, *flags: str) -> Any:
    folder = setting.scratch / f"aiperf-{kind}-{name}"
    command: list[str | Path] = [venv("aiperf", [pinned("aiperf")]) / "aiperf", "profile"]
    command += ["--model", setting.model, "--url", setting.url, "--endpoint-type", kind]
    command += ["--streaming", "--tokenizer", setting.tokenizer, "--ui", "none"]
    command += ["--concurrency", "2", "--request-count", str(NUM)]
    command += ["--synthetic-input-tokens-mean", "64", "--output-tokens-mean", str(output)]
    command += ["--extra-inputs", "ignore_eos:true", "--artifact-dir", folder, *flags]
    # where one of these is set, this client takes no folder for a tokenizer
    run(command, HF_HUB_OFFLINE="", TRANSFORMERS_OFFLINE="")
    return json.loads((folder / "profile_export_aiperf.json").read_text())


def _count(told: Any, metric: str) -> int:
    return int((told.get(metric) or {"avg": 0})["avg"])
