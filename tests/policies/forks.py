"""Scripts, each in a process of its own, forked from one that has imported what all need."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import count
from pathlib import Path
from typing import NamedTuple

MOST_SECONDS = 60

# The parent reads a script and a path a line, and writes the exit status. It has one thread
_PARENT = f"""
import json, os, signal, sys

def next_script():
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    for line in sys.stdin:
        script, output = json.loads(line)
        child = os.fork()
        if child == 0:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
            file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(file, 1)
            os.dup2(file, 2)
            return script
        if signal.sigtimedwait([signal.SIGCHLD], {MOST_SECONDS}) is None:
            os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
        signal.sigtimedwait([signal.SIGCHLD], 0)  # of one that was killed
        print(os.waitstatus_to_exitcode(status), flush=True)
    sys.exit()

exec(next_script())
"""


class Ended(NamedTuple):
    status: int  # negative: the signal that ended it, SIGKILL after MOST_SECONDS
    output: str  # standard output and error


class Forks:
    """The process that forks. A context manager, which ends it."""

    def __init__(self, prelude: str, folder: Path) -> None:
        """`prelude` runs once, before any script; `folder` keeps their outputs."""
        self._outputs = (folder / f"{number}.txt" for number in count())
        self._process = subprocess.Popen(
            [sys.executable, "-c", prelude + _PARENT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Forks:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def run(self, script: str) -> Ended:
        """Run it in a fork, and wait for its end."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        output = next(self._outputs)
        print(json.dumps([script, str(output)]), file=self._process.stdin, flush=True)
        status = int(self._process.stdout.readline())
        return Ended(status, output.read_text())
