"""Starts the engine process, and sees to it that it ends.

The front holds one end of a socketpair, the engine the other; each process leaves when the other's
end closes, so that neither outlives the other however it dies.
"""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from cadenza.policies.blame import SIZE, Culprit, read_blame

# The engine's threads share the cores with this process. Threads that spin for long at a barrier
# keep the one they wait for from running; those that do not spin at all pay for every wake-up. A
# decode step of 8 rows on two cores took 49 ms after 1,000 turns, 70 ms after none, 51 ms with
# libgomp's default; with both cores busy otherwise, 68 ms after 2,000 turns, 192 ms after none.
_ENVIRONMENT = {"GOMP_SPINCOUNT": "1000"}

_COMMAND = (sys.executable, "-P", "-m", "cadenza.engine")

_ITS_OWN_FAULTS = frozenset(
    {
        signal.SIGABRT,
        signal.SIGBUS,
        signal.SIGFPE,
        signal.SIGILL,
        signal.SIGSEGV,
        signal.SIGSYS,
        signal.SIGTRAP,
    }
)


class EngineProcess:
    """A running engine process. `connection` is the front's end, to be given to `EngineClient`.

    `blame` is memory in which the engine notes the policy hook that it is calling.
    """

    def __init__(
        self, process: subprocess.Popen[bytes], connection: socket.socket, blame: mmap.mmap
    ) -> None:
        self.connection = connection
        self._process = process
        self._blame = blame
        self._was_signalled = False  # by us

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_status(self) -> int | None:
        """None while it runs; minus the signal's number where a signal ended it."""
        return self._process.poll()

    @property
    def culprit(self) -> Culprit | None:
        """The policy hook that was called and has not returned, also after the engine's death."""
        return read_blame(self._blame)

    @property
    def hook_under_way(self) -> str | None:
        """The same as a phrase."""
        culprit = self.culprit
        return culprit and f"hook {culprit.hook} of policy {culprit.policy}"

    @property
    def is_stopped(self) -> bool:
        """Whether somebody has stopped it, as SIGSTOP does."""
        try:
            status = Path(f"/proc/{self.pid}/stat").read_text()
        except OSError:
            return False
        return status.rpartition(")")[2].split()[0] in "Tt"

    @property
    def was_ended_by_others(self) -> bool:
        """Whether a signal ended it that neither we sent nor a process brings upon itself.

        The system's killer sends such a one when memory runs out, and so does an operator.
        """
        status = self.exit_status
        if status is None or status >= 0 or self._was_signalled:
            return False
        return -status not in _ITS_OWN_FAULTS

    def describe_exit(self) -> str:
        """A phrase for logs and errors."""
        status = self.exit_status
        if status is None:
            return "is running"
        if status < 0:
            return f"was ended by {signal.Signals(-status).name}"
        return f"exited with status {status}"

    async def wait(self) -> int:
        """Wait until it has exited, and return its status."""
        if self.exit_status is None:
            loop = asyncio.get_running_loop()
            exited = asyncio.Event()
            pidfd = os.pidfd_open(self.pid)
            loop.add_reader(pidfd, exited.set)
            try:
                await exited.wait()
            finally:
                loop.remove_reader(pidfd)
                os.close(pidfd)
        return self._process.wait()

    async def kill(self, grace_s: float = 0.0) -> int:
        """End it at once, or if it has not left after `grace_s`. Idempotent."""
        if not (grace_s and await self._leaves_within(grace_s)):
            self._kill()
        return await self.wait()

    async def stop(self, grace_s: float = 5.0) -> int:
        """End it, with SIGTERM if it has not left after `grace_s`, then SIGKILL. Idempotent.

        To let it leave by itself, close its `EngineClient` first. Cancelling kills it at once.
        """
        try:
            if not await self._leaves_within(grace_s):
                self._was_signalled = True
                self._process.terminate()
                await self._leaves_within(grace_s)
        finally:
            self._kill()
        return await self.wait()

    def end(self) -> None:
        """Kill it at once, unless it has left. Idempotent."""
        self._kill()
        self._process.wait()
        self.connection.close()

    def _kill(self) -> None:
        if self.exit_status is None:
            self._was_signalled = True
            self._process.kill()

    async def _leaves_within(self, timeout_s: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self.wait()
        return self.exit_status is not None


def start_engine(command: Sequence[str] = _COMMAND) -> EngineProcess:
    """Start an engine process, which imports its libraries, then waits for `Start`.

    Blocks for some milliseconds. Call it in a thread that stays, since the kernel ends the engine
    with it. The engine has its own session, so that Ctrl-C in a terminal reaches the front alone.

    Raises:
        OSError: the process cannot be started.
    """
    ours, theirs = socket.socketpair()
    with theirs, os.fdopen(os.memfd_create("cadenza-blame"), "wb") as memory:
        try:
            memory.truncate(SIZE)
            blame = mmap.mmap(memory.fileno(), SIZE)
            fds = theirs.fileno(), memory.fileno()
            process = subprocess.Popen(
                [*command, "--fd", str(fds[0]), "--blame-fd", str(fds[1])],
                pass_fds=fds,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env=_ENVIRONMENT | os.environ,
            )
        except BaseException:
            ours.close()
            raise
    return EngineProcess(process, ours, blame)
