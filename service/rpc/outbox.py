"""Events on their way to one client: bounded, and drained whole by the writer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeAlias

from cadenza.service.rpc.codec import messages

Write: TypeAlias = Callable[[bytes], Awaitable[None]]  # an encoded message


class Outbox:
    """Many producers, one consumer. `put` never waits; producers wait for `room` before it."""

    __slots__ = ("_consumer", "_events", "_is_closed", "_limit", "_taken", "num_bytes")

    def __init__(self, limit: int) -> None:
        """There is room while fewer than `limit` bytes wait."""
        self.num_bytes = 0  # of the events that wait; to be read only
        self._limit = limit
        self._events: list[bytes] = []
        self._is_closed = False
        self._consumer: asyncio.Future[None] | None = None  # while it waits for events
        self._taken: asyncio.Event | None = None  # while producers wait for room

    def put(self, events: Iterable[bytes]) -> None:
        """Append encoded events, of which some may be joined; at once, whatever waits already."""
        for event in events:
            self._events.append(event)
            self.num_bytes += len(event)
        self._wake()

    @property
    def has_room(self) -> bool:
        """Whether `room` would not wait."""
        return self.num_bytes < self._limit

    async def room(self, limit: int | None = None) -> None:
        """Wait for room, by another limit where one is given. A `put` after it comes at once."""
        while self.num_bytes >= (self._limit if limit is None else limit):
            if self._taken is None:
                self._taken = asyncio.Event()
            await self._taken.wait()

    async def take(self) -> list[bytes]:
        """Wait for events and take all of them, in order. Empty: closed, and nothing is left."""
        while not (self._events or self._is_closed):
            self._consumer = asyncio.get_running_loop().create_future()
            await self._consumer
        events, self._events, self.num_bytes = self._events, [], 0
        if self._taken is not None:
            self._taken.set()
            self._taken = None  # who waits next waits for the next take
        return events

    async def write_to(self, write: Write) -> None:
        """Write all that comes, until closed: what waits as one message, if one may have so much.

        Raises what `write` raises.
        """
        while events := await self.take():
            for message in messages(events):
                await write(message)

    def close(self) -> None:
        """No more events come; `take` gives out what is left."""
        self._is_closed = True
        self._wake()

    def _wake(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None and not consumer.done():
            consumer.set_result(None)
