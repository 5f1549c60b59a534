"""Loads of `make bench-serving`, and the client that makes them: `vllm bench serve`."""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

import servers


class Load(NamedTuple):
    """So many streams at a time, of random prompts, all of the same lengths in tokens."""

    streams: int
    input: int
    output: int

    @property
    def requests(self) -> int:
        return max(3 * self.streams, 8)

    def __str__(self) -> str:
        return f"{self.streams} x {self.input:,}/{self.output}"


class Measured(NamedTuple):
    tok_s: float  # output tokens
    ttft_ms: float  # median


class Incomplete(Exception):
    """Requests failed, or got fewer tokens than they asked for: there is no figure."""


class Client:
    """`vllm bench serve` of a venv, with the tokenizer of a model folder."""

    def __init__(self, venv: Path, model: Path) -> None:
        self._command = (
            *(str(venv / "bin" / "vllm"), "bench", "serve", "--model", servers.NAME),
            *("--tokenizer", str(model), "--endpoint", "/v1/completions"),
            *("--dataset-name", "random", "--ignore-eos", "--temperature", "0", "--disable-tqdm"),
            "--save-result",
        )
        self._environment = servers.peer_environment() | {"VLLM_TARGET_DEVICE": "cpu"}

    def measure(self, server: servers.Server, load: Load, seed: int) -> Measured:
        """Raises Incomplete. Of one seed all prompts differ, and no other seed has them."""
        with tempfile.TemporaryDirectory() as folder:
            command = (
                *(*self._command, "--base-url", server.url, "--seed", str(seed)),
                *("--random-input-len", str(load.input), "--random-output-len", str(load.output)),
                *("--num-prompts", str(load.requests), "--max-concurrency", str(load.streams)),
                *("--result-dir", folder, "--result-filename", "result.json"),
            )
            done = subprocess.run(
                command, capture_output=True, text=True, env=self._environment, check=False
            )
            result = Path(folder, "result.json")
            if not result.exists():
                raise Incomplete(f"the client failed: {done.stderr[-500:]}")
            return _measured(json.loads(result.read_text()), load, server.tells_tokens)


def _measured(told: dict[str, float], load: Load, tells_tokens: bool) -> Measured:
    """Where the server does not tell how many tokens came, the client guesses, of their text."""
    if (completed := told["completed"]) < load.requests:
        raise Incomplete(f"{load.requests - completed} of {load.requests} requests failed")
    wanted = load.requests * load.output
    if tells_tokens and (tokens := told["total_output_tokens"]) != wanted:
        raise Incomplete(f"{tokens:,} tokens came, not {wanted:,}")
    return Measured(wanted / told["duration"], told["median_ttft_ms"])
