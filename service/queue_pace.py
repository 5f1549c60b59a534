"""How fast those that wait get their first seats, and so how long a newcomer would wait."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

_SEATS = 64  # the latest, by which the pace is told
_TOGETHER_S = 0.02  # within which seats are of one step


class QueuePace:
    """Counts only time in which somebody waits: without work seats tell nothing."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._looked_s = clock()
        self._waited_s = 0.0  # in all
        self._seats_s: deque[float] = deque(maxlen=_SEATS)  # by `_waited_s`

    def advance(self, *, somebody_waited: bool) -> None:
        """Now the number of those that wait changes; until now somebody waited, or nobody."""
        now_s = self._clock()
        if somebody_waited:
            self._waited_s += now_s - self._looked_s
        self._looked_s = now_s

    def seated(self) -> None:
        """Somebody has a first seat, `advance` having been called."""
        self._seats_s.append(self._waited_s)

    def wait_s(self, num_waiting: int) -> float:
        """Seconds until so many have seats, at the pace of late; 0 before any is known."""
        self.advance(somebody_waited=num_waiting > 0)
        if not self._seats_s:
            return 0.0
        # Those that were seated together with the first tell nothing of how long it takes
        first_s = self._seats_s[0]
        num_later = sum([seat_s > first_s + _TOGETHER_S for seat_s in self._seats_s])
        return num_waiting * (self._waited_s - first_s) / num_later if num_later else 0.0
