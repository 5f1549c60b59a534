"""Waits for the end of several things at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any


async def all_ended(*work: Awaitable[Any]) -> None:
    """Wait until all of it has ended, and raise the first failure, if there is one.

    Work that was cancelled has not failed.
    """
    for outcome in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(outcome, Exception):
            raise outcome
