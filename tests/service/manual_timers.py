"""Timers that go off when a test says so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(eq=False)
class ManualTimer:
    due_s: float
    call: Callable[[], None]
    is_over: bool = False

    def cancel(self) -> None:
        self.is_over = True


class ManualTimers:
    """Fits where `Later` is wanted."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._timers: list[ManualTimer] = []

    def __call__(self, delay_s: float, call: Callable[[], None]) -> ManualTimer:
        timer = ManualTimer(self.now_s + delay_s, call)
        self._timers.append(timer)
        return timer

    @property
    def num_waiting(self) -> int:
        return sum(not timer.is_over for timer in self._timers)

    def advance(self, seconds: float) -> None:
        """Let this time pass."""
        self.now_s += seconds
        for timer in sorted(self._timers, key=lambda timer: timer.due_s):
            if timer.due_s <= self.now_s and not timer.is_over:
                timer.is_over = True
                timer.call()
        self._timers = [timer for timer in self._timers if not timer.is_over]
