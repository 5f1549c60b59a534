"""What the runner and the clients' files share: a setting, a case, and its result."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
LIMIT_S = 600.0  # for one command; only what hangs takes so long


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What clients are run against."""

    url: str
    grpc: str  # host:port
    model: str  # its served name
    tokenizer: Path  # a folder that transformers can read
    scratch: Path  # an empty folder


@dataclass(frozen=True, slots=True)
class Result:
    """How a case went. `why`: None means passed."""

    name: str
    why: str | None = None
    is_skip: bool = False

    @property
    def outcome(self) -> str:
        """One word."""
        if self.why is None:
            return "passed"
        return "skipped" if self.is_skip else "failed"


class Faulty(Exception):
    """A client said that something was wrong, or something was."""


Cases = Callable[[Setting], Iterator[Result]]


def judged(name: str, judge: Callable[[], Any]) -> Result:
    """The result of a function that raises if the case has failed."""
    try:
        judge()
    except Exception as error:  # whatever a client does, the others are still run
        return Result(name, f"{type(error).__name__}: {error}")
    return Result(name)


def run(command: Sequence[str | Path], **environment: str) -> str:
    """Standard output of a command.

    Raises:
        Faulty: it failed or hung; the message has the end of what it said.
    """
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            env={**os.environ, **environment},
        )
    except subprocess.TimeoutExpired as error:
        raise Faulty(f"it hung for {LIMIT_S:.0f} s: {error.stdout!r}") from error
    if done.returncode != 0:
        raise Faulty(f"exit status {done.returncode}\n{(done.stdout + done.stderr)[-3000:]}")
    return done.stdout


def expect(told: Any, wanted: Any, what: str) -> None:
    """Raise Faulty unless they are equal."""
    if told != wanted:
        raise Faulty(f"{what}: {told} and not {wanted}")
