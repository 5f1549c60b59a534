"""Readers that are woken a few in a turn of the loop."""

from __future__ import annotations

import asyncio
from collections import deque

_A_TURN = 4


class Turns:
    """Wakes whoever waits, in order, and leaves the loop to others in between.

    What a step brings may end all streams at once, and each end is a fraction of a millisecond of
    work. A request that comes meanwhile, perhaps to be refused, waits for a few of them, not for
    all.
    """

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._left = _A_TURN  # in this turn
        self._is_due = False

    def wake(self, waiter: asyncio.Future[None]) -> None:
        """Let whoever waits for `waiter` go on, now or in one of the next turns of the loop."""
        self._waiting.append(waiter)
        self._wake_some()

    def _wake_some(self) -> None:
        while self._left and self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                self._left -= 1
        if self._left < _A_TURN and not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._is_due = False
        self._left = _A_TURN
        self._wake_some()
