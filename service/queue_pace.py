"""How fast those that wait get their first seats, and so how long a newcomer would wait."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

_SEATS = 64  # the latest, by which the pace is told
_TOGETHER_S = 0.02  # within which seats are of one step


@dataclass(slots=True)
class _Step:
    """Seats that were given together."""

    began_s: float  # by `_waited_s`
    num_seats: int


class QueuePace:
    """Counts only time in which somebody waits: without work seats tell nothing."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._looked_s = clock()
        self._waited_s = 0.0  # in all
        # The first has no seats that tell: how long they took is not known
        self._steps: deque[_Step] = deque()
        self._num_later = 0  # seats of all steps but the first

    def advance(self, *, somebody_waited: bool) -> None:
        """Now the number of those that wait changes; until now somebody waited, or nobody."""
        now_s = self._clock()
        if somebody_waited:
            self._waited_s += now_s - self._looked_s
        self._looked_s = now_s

    def seated(self) -> None:
        """Somebody has a first seat, `advance` having been called."""
        steps = self._steps
        if not steps or self._waited_s > steps[-1].began_s + _TOGETHER_S:
            steps.append(_Step(self._waited_s, 0))
        steps[-1].num_seats += 1
        self._num_later += len(steps) > 1
        while len(steps) > 2 and self._num_later - steps[1].num_seats >= _SEATS:
            steps.popleft()
            self._num_later -= steps[0].num_seats

    def wait_s(self, num_waiting: int) -> float:
        """Seconds until so many have seats, at the pace of late; 0 before two steps gave any."""
        self.advance(somebody_waited=num_waiting > 0)
        if not self._num_later:
            return 0.0
        return num_waiting * (self._waited_s - self._steps[0].began_s) / self._num_later
