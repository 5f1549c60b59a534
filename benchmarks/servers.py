"""Servers that are measured in turns: each is started once, and stands still while another works.

A server is all processes that come of the one that was started; some of ours and of vLLM's have
groups or sessions of their own.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import httpx

NAME = "model"  # by which every server knows it
MAX_MODEL_LEN = 2048  # tokens
KV_GIB = 2  # for each server

_TCMALLOC = "libtcmalloc_minimal.so.4"
_OURS_ALONE = ("PYTHONPATH", "GOMP_SPINCOUNT")  # set for our processes; not for a peer's
_LOADS_S, _LEAVES_S = 600.0, 10.0


class Launch(NamedTuple):
    """How to start one."""

    name: str
    command: tuple[str, ...]
    port: int
    environment: dict[str, str]
    tells_tokens: bool = True  # how many it has generated, where the client looks for that


class Server:
    """One that runs, by `running`."""

    def __init__(self, launch: Launch, pid: int) -> None:
        self.name = launch.name
        self.tells_tokens = launch.tells_tokens
        self.url = f"http://127.0.0.1:{launch.port}"
        self._pid = pid

    def ask(self, prompt: str, max_tokens: int) -> None:
        """Have a text completed. Raises httpx.HTTPError."""
        body = {"model": NAME, "prompt": prompt, "max_tokens": max_tokens}
        httpx.post(f"{self.url}/v1/completions", json=body, timeout=60).raise_for_status()

    def stand_still(self) -> None:
        """Take no more of the machine than memory."""
        for pid in descendants(self._pid):
            os.kill(pid, signal.SIGSTOP)

    def go_on(self) -> None:
        for pid in descendants(self._pid):
            os.kill(pid, signal.SIGCONT)


@contextmanager
def running(launch: Launch) -> Iterator[Server]:
    """Start a server and wait until it answers; in the end no process of it is left.

    Raises RuntimeError, with the end of its log, where it does not answer within ten minutes.
    """
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            launch.command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=launch.environment,
            start_new_session=True,  # Ctrl-C is for us, who then end it
        )
        try:
            server = Server(launch, process.pid)
            if not _answers(server, process):
                log.seek(0)
                raise RuntimeError(f"{launch.name} does not answer:\n{log.read()[-2000:]}")
            yield server
        finally:
            _end(process)


def _answers(server: Server, process: subprocess.Popen[bytes]) -> bool:
    until_s = time.monotonic() + _LOADS_S
    while process.poll() is None and time.monotonic() < until_s:
        with suppress(httpx.HTTPError):
            server.ask("Once", 1)
            return True
        time.sleep(0.2)
    return False


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask it to leave, wherever it stands; what has not left in time is killed."""
    family = descendants(process.pid)
    _send(family, signal.SIGCONT)
    _send(family[:1], signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_LEAVES_S)
    _send(family, signal.SIGKILL)
    process.wait()


def _send(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def descendants(pid: int) -> list[int]:
    """Name a process and all that came of it, parents before their children."""
    found = [pid]
    for parent in found:
        with suppress(OSError):
            for task in Path(f"/proc/{parent}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
    return found


# How each is started


def ours(model: Path, name: str, options: tuple[str, ...]) -> Launch:
    """Ours, of a model folder, with options of `cadenza serve`."""
    port = _free_port()
    command = (
        *(sys.executable, "-P", "-m", "cadenza.cli", "serve", str(model), *options),
        *("--port", str(port), "--grpc-port", "0", "--served-model-name", NAME),
        *("--max-model-len", str(MAX_MODEL_LEN), "--kv-cache-memory-bytes", str(KV_GIB << 30)),
    )
    return Launch(name, command, port, dict(os.environ))


def vllm(venv: Path, model: Path) -> Launch:
    """vLLM as it was found to be fastest on two cores.

    It gets all cores, tcmalloc and Intel's OpenMP. Its variables in our environment win, and
    VLLM_ARGS adds flags, for whoever looks for better settings.
    """
    port = _free_port()
    preload = [str(venv / "lib" / "libiomp5.so")]
    if (tcmalloc := find_tcmalloc()) is not None:
        preload.insert(0, str(tcmalloc))
    settings = {
        "LD_PRELOAD": ":".join(preload),
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
        "VLLM_TARGET_DEVICE": "cpu",
        "VLLM_CPU_KVCACHE_SPACE": str(KV_GIB),
    }
    command = (
        *(str(venv / "bin" / "vllm"), "serve", str(model), "--host", "127.0.0.1"),
        *("--port", str(port), "--served-model-name", NAME, "--max-model-len", str(MAX_MODEL_LEN)),
        *os.environ.get("VLLM_ARGS", "").split(),
    )
    return Launch("vllm", command, port, settings | peer_environment())


def llama_cpp(server: Path, gguf: Path, streams: int, length: int) -> Launch:
    """llama.cpp's server, of a GGUF file as it is, with seats for streams of so many tokens."""
    port = _free_port()
    command = (
        *(str(server), "--model", str(gguf), "--alias", NAME, "--port", str(port)),
        *("--parallel", str(streams), "--ctx-size", str(streams * length)),
        *("--threads", str(len(os.sched_getaffinity(0)))),
    )
    return Launch("llama.cpp", command, port, peer_environment(), tells_tokens=False)


def peer_environment() -> dict[str, str]:
    """Return ours, without what is for our own processes."""
    return {name: value for name, value in os.environ.items() if name not in _OURS_ALONE}


def find_tcmalloc() -> Path | None:
    """Return the library, as Debian's libtcmalloc-minimal4 installs it."""
    return next(Path("/usr/lib").glob(f"*/{_TCMALLOC}"), None)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
