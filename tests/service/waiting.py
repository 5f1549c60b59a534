"""Waiting for what nothing tells, in one place."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

_LIMIT_S = 10.0


async def until(condition: Callable[[], bool]) -> None:
    """Wait until this holds: of other threads and sockets, where there is no event to wait for.

    What the fake engine gets is waited for with its `until`, and what it said with `Front.told`.
    """
    async with asyncio.timeout(_LIMIT_S):
        while not condition():  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.001)
