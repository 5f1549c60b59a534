"""Memory in large pages, where the system has them.

Every step reads all weights: in pages of 4 KiB the processor has to look up an address for every 64
cache lines. What is written to first brings a whole large page, so that a cache that is used here
and there takes up to 2 MiB for each place; never more than its size.
"""

from __future__ import annotations

import mmap
import threading
from contextlib import suppress

import torch
from torch import Tensor

_PAGE = 2 << 20  # bytes of a large page
_ALIGNMENT = 64  # bytes of a cache line
_CHUNK = 32 << 20
_ALONE = 8 << 20  # bytes from which on a piece is given back by itself


def zeros(num_bytes: int) -> Tensor:
    """Return bytes that the system provides page by page, as they are first written.

    They begin at a large page, if there are enough of them to fill one.

    Raises:
        OSError, OverflowError: the system has no room for so much.
    """
    if not num_bytes:
        return torch.zeros(0, dtype=torch.uint8)
    spare = _PAGE if num_bytes >= _PAGE else 0
    memory = mmap.mmap(-1, num_bytes + spare, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    if not spare:
        return whole
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return whole.narrow(0, -whole.data_ptr() % _PAGE, num_bytes)


class LargePages:
    """Hands out pieces of them. A piece is the caller's; threads may ask at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._left = zeros(0)

    def take(self, num_bytes: int) -> Tensor:
        """Return so many bytes, uint8, at a cache line's begin. Raises MemoryError."""
        taken = -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
        if taken >= _ALONE:
            return _zeros(taken)[:num_bytes]
        with self._lock:
            if len(self._left) < taken:
                self._left = _zeros(_CHUNK)
            piece, self._left = self._left[:num_bytes], self._left[taken:]
        return piece


def _zeros(num_bytes: int) -> Tensor:
    try:
        return zeros(num_bytes)
    except (OSError, OverflowError) as error:
        raise MemoryError(f"no memory for {num_bytes:,} bytes of weights: {error}") from error
