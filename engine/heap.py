"""The C library's heap, which keeps much of what is freed for later."""

from __future__ import annotations

import ctypes
from contextlib import suppress


def trim() -> None:
    """Give what is freed back to the system, where the C library can: glibc does."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
