"""What the engine asks the kernel for itself. Linux alone can; elsewhere nothing happens."""

from __future__ import annotations

import ctypes
import signal
import sys

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15  # of <linux/prctl.h>


def die_with_the_front() -> None:
    """Have the kernel end this process when the front is killed, even while it hangs or computes.

    Where the kernel cannot, the engine leaves when it next looks at its socket.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def call_oneself(name: str) -> None:
    """Let `ps` and `top` show `name`, at most 15 bytes, for this process's main thread."""
    _prctl(_PR_SET_NAME, ctypes.c_char_p(name.encode()))


def _prctl(option: int, value: int | ctypes.c_char_p) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
