"""A clock that goes only where it is told to."""

from __future__ import annotations


class ManualClock:
    """Seconds, as whoever holds the clock says. Calling it tells them, so that it fits any timer.

    clock = ManualClock()
    clock.advance(0.5)
    assert clock() == clock.now_s == 0.5
    """

    def __init__(self, now_s: float = 0.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> float:
        """Go on, and tell the new time.

        Raises:
            ValueError: `seconds` is negative; policies are promised a clock that never goes back.
        """
        if not seconds >= 0:
            raise ValueError(f"a monotonic clock cannot advance by {seconds} s")
        self.now_s += seconds
        return self.now_s
