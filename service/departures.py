"""Waiting until requests have left."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable


class Departures:
    """Wakes those who wait for others to leave. Belongs to one event loop."""

    def __init__(self) -> None:
        self._noted = asyncio.Event()

    def note(self) -> None:
        """Somebody has left, or what made others wait is over."""
        self._noted.set()

    async def until(self, is_over: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until this holds, which is looked at after each departure. Whether it does."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not is_over():
                    self._noted.clear()
                    await self._noted.wait()
        return is_over()
