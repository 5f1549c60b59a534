"""Events on their way to one client: bounded, and drained whole by the writer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable


class Outbox:
    """Many producers, one consumer. `put` never waits; producers wait for `room` before it."""

    def __init__(self) -> None:
        self.num_bytes = 0  # of the events that wait; to be read only
        self._events: list[bytes] = []
        self._is_closed = False
        self._filled = asyncio.Event()
        self._taken = asyncio.Event()

    def put(self, events: Iterable[bytes]) -> None:
        """Append encoded events; at once, whatever waits already."""
        for event in events:
            self._events.append(event)
            self.num_bytes += len(event)
        self._filled.set()

    def put_one(self, event: bytes) -> None:
        """The same for a single event, of which there is one for every token."""
        self._events.append(event)
        self.num_bytes += len(event)
        if len(self._events) == 1:
            self._filled.set()

    async def room(self, limit: int) -> None:
        """Wait until fewer than `limit` bytes wait. Nothing else runs between this and a `put`."""
        while self.num_bytes >= limit:
            await self._taken.wait()

    async def take(self) -> list[bytes]:
        """Wait for events and take all of them, in order. Empty: closed, and nothing is left."""
        await self._filled.wait()
        events, self._events, self.num_bytes = self._events, [], 0
        if not self._is_closed:
            self._filled.clear()
        # A fresh event a round: who waits next waits for the next take.
        taken, self._taken = self._taken, asyncio.Event()
        taken.set()
        return events

    def close(self) -> None:
        """No more events come; `take` gives out what is left."""
        self._is_closed = True
        self._filled.set()
