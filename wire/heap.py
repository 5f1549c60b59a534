"""The heap of a process that serves."""

from __future__ import annotations

import gc


def freeze_heap() -> None:
    """Let the garbage collector pass over all that there is now, for the process's life.

    Modules and what was built of them never become garbage, and walking over them again and again
    would stop every stream for tens of milliseconds.
    """
    gc.collect()
    gc.freeze()
