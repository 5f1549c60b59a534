"""A server of the demo model, as a process of its own."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

COMMAND = (sys.executable, "-P", "-m", "cadenza.cli")


@dataclass
class Served:
    """A running server."""

    process: subprocess.Popen[str]
    http: str  # base URL
    grpc: str  # host:port
    start_s: float  # from process start to the banner

    @property
    def engine_pid(self) -> int:
        """Of the present engine process."""
        asked = ["ps", "-o", "pid=,comm=", "--ppid", str(self.process.pid)]
        told = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
        [pid] = [line.split()[0] for line in told.splitlines() if line.endswith("cadenza-engine")]
        return int(pid)

    def stop(self, timeout_s: float = 30.0) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout_s)


@contextmanager
def serving(*flags: str) -> Iterator[Served]:
    """Start a server on free ports; kill it afterwards if it still runs."""
    started = time.monotonic()
    with subprocess.Popen(
        [*COMMAND, "serve", "demo", "--port", "0", "--grpc-port", "0", *flags],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            banner = read_until(process, "Stop with Ctrl-C.")
            http = re.search(r"HTTP (http://\S+)/v1", banner)
            grpc = re.search(r"gRPC (\S+)", banner)
            assert http, banner
            assert grpc, banner
            yield Served(process, http[1], grpc[1], time.monotonic() - started)
        finally:
            process.kill()


def read_until(process: subprocess.Popen[str], last: str) -> str:
    """Standard output up to the line with `last`."""
    assert process.stdout is not None
    text = ""
    for line in process.stdout:
        text += line
        if last in line:
            return text
    raise AssertionError(f"the server ended after:\n{text}")
