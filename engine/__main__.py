"""`python -P -m cadenza.engine --fd N`."""

import ctypes
import signal
import sys

from cadenza.engine.main import main

_PR_SET_PDEATHSIG = 1  # of <linux/prctl.h>


def _die_with_the_front() -> None:
    """Have the kernel end this process when the front is killed, even while it hangs or computes.

    Where the kernel cannot, the engine leaves when it next looks at its socket.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


if __name__ == "__main__":
    _die_with_the_front()
    sys.exit(main())
