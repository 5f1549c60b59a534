"""Ends the work for a client that has left, in whatever state the work is."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from starlette.types import Receive

from cadenza.service.http.errors import ClientGone


async def while_connected(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Run `work`, and cancel it as soon as the client disconnects. It has ended on return.

    uvicorn neither cancels a handler nor raises from `send` when the client is gone, so that only
    `receive` tells. The request's body must have been read.

    Raises:
        ClientGone: the client disconnected first.
    """
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
    finally:
        watcher.cancel()
        task.cancel()
        await asyncio.gather(task, watcher, return_exceptions=True)
    task.result()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
