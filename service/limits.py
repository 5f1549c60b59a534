"""How much one client, and all together, may ask for; and the queue, which is held to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cadenza.service.errors import Overloaded


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds that do not depend on the model. Beyond them a request is refused, never clipped."""

    max_queued: int = 256  # choices without a first seat yet
    max_choices: int = 16
    max_messages: int = 4096
    max_stops: int = 4
    max_stop_chars: int = 256
    max_stop_token_ids: int = 16
    max_logprobs: int = 20
    max_salt_chars: int = 128
    max_tenant_chars: int = 128


class Queue:
    """Choices that have had no seat yet, as places of which there are `size`."""

    def __init__(self, size: int) -> None:
        self.num_taken = 0
        self._size = size

    def enter(self, counts: Sequence[int]) -> list[Places]:
        """Take places for several requests at once: all of them, or none.

        Raises:
            Overloaded: there are not as many.
        """
        if self.num_taken + sum(counts) > self._size:
            raise Overloaded(f"The queue is full ({self.num_taken} choices wait). Try again later.")
        return [Places(self, count) for count in counts]


class Places:
    """One request's places. Each is given back once, however often its holder leaves."""

    def __init__(self, queue: Queue, count: int) -> None:
        """`Queue.enter` makes them."""
        self._queue = queue
        self._num_held = count
        queue.num_taken += count

    def leave(self, count: int = 1) -> None:
        """Give back up to `count` places."""
        count = min(count, self._num_held)
        self._num_held -= count
        self._queue.num_taken -= count

    def leave_all(self) -> None:
        """Give back what is still held. Idempotent."""
        self.leave(self._num_held)
