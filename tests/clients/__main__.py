"""Clients that nobody here wrote, against a server of the demo model: `make clients`.

Each is installed once into a venv of its own. A line tells how each case went, the last one how
many; the exit status is 0 if none has failed. VLLM_VENV names a venv with vLLM, whose client is
skipped without it; MODEL_DIR a folder whose tokenizer is used instead of the model's own. Words
among the arguments choose the clients whose names begin with them.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.clients import afterwards, aiperf, guidellm, programs, smg, vllm_bench
from tests.clients.case import Result, Setting, expect, judged
from tests.clients.tokenizer_folder import write_tokenizer
from tests.e2e.servers import Served, serving

CLIENTS = {
    "programs": programs.cases,
    "vllm": vllm_bench.cases,
    "guidellm": guidellm.cases,
    "aiperf": aiperf.cases,
    "smg": smg.cases,
}
MODEL = "SmolLM2-135M-Instruct"


def results(names: Iterable[str], scratch: Path) -> Iterator[Result]:
    """Each case of these clients as it ends, and last how the server is afterwards."""
    with serving() as served:
        setting = Setting(
            url=served.http,
            grpc=served.grpc,
            model=MODEL,
            tokenizer=_tokenizer(scratch),
            scratch=scratch,
        )
        before = afterwards.reference(setting.url)
        for name in names:
            yield from CLIENTS[name](setting)
        yield from afterwards.cases(setting, before)
        yield judged("server: stops", lambda: _stop(served))


def _tokenizer(scratch: Path) -> Path:
    if given := os.environ.get("MODEL_DIR"):
        return Path(given)
    folder = scratch / "tokenizer"
    folder.mkdir()
    write_tokenizer(folder)
    return folder


def _stop(served: Served) -> None:
    expect(served.stop(), 0, "exit status")


def report(told: Iterable[Result]) -> int:
    """Print each result and the counts; the exit status."""
    counts: Counter[str] = Counter()
    for result in told:
        counts[result.outcome] += 1
        say(f"{result.outcome:8}{result.name}" + (f": {result.why}" if result.why else ""))
    say(
        "clients: "
        + ", ".join(f"{counts[word]} {word}" for word in ("passed", "failed", "skipped"))
    )
    return 1 if counts["failed"] or not counts["passed"] else 0


def say(line: Any) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(words: list[str]) -> int:
    unknown = [word for word in words if not any(name.startswith(word) for name in CLIENTS)]
    if unknown:
        say(f"There is no client {unknown[0]}, only {', '.join(CLIENTS)}.")
        return 2
    names = [name for name in CLIENTS if not words or any(map(name.startswith, words))]
    with TemporaryDirectory() as scratch:
        return report(results(names, Path(scratch)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
