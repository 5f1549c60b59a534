"""Ends the work for a client that has left, in whatever state the work is."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from cadenza.service.http.connection import Connection
from cadenza.service.http.errors import ClientGone


async def while_connected(connection: Connection, work: Coroutine[Any, Any, None]) -> None:
    """Run `work`, and cancel it as soon as the client disconnects. It has ended on return.

    It runs in the task of whoever calls this, which a refusal may pass through in one turn of the
    loop: in a task of its own it would wait several times for whatever else is due, such as the
    ends of all streams of a step. What comes of the request's body is dropped from now on.

    Raises:
        ClientGone: the client disconnected first.
    """
    task = asyncio.current_task()
    assert task is not None
    is_gone, num_cancels = False, task.cancelling()

    def leave() -> None:
        nonlocal is_gone
        is_gone = True
        task.cancel()

    if connection.is_lost:
        work.close()
        raise ClientGone
    connection.watch_loss(leave)
    try:
        await work
    except asyncio.CancelledError:
        if not is_gone or task.cancelling() > num_cancels + 1:  # somebody else wants it to end
            raise
        raise ClientGone from None
    finally:
        connection.unwatch_loss(leave)
        if is_gone:
            task.uncancel()
