"""Which requests engines may have died of, and which one it was.

A request that two engines in a row die with at the same place of its output is a suspect. The next
engine gets one suspect alone, and another whenever the one before has got past its place; nobody
else before all have. Who is at its place when an engine dies in that time is what it died of.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from cadenza.service.submissions import Submission

_SUSPECT, _GUILTY = 2, 3  # strikes
_PAST = 2  # tokens beyond its place: of the fatal pass nobody knows whether it was the next one


class Suspects:
    """Requests that wait to be tried, and the one that is."""

    def __init__(self) -> None:
        self._tried: Submission | None = None
        self._waiting: deque[Submission] = deque()
        self._struck: tuple[Submission, ...] = ()  # by the latest death

    @property
    def are_tried(self) -> bool:
        """Whether nobody else may be sent to the engine."""
        return self._tried is not None or bool(self._waiting)

    def engine_died(self, at_work: Iterable[Submission]) -> None:
        """An engine has died that was at work at these. `convict` tells what comes of it."""
        self._struck = tuple(at_work)
        for each in self._struck:
            is_past = each.num_tokens >= each.progress_at_death + _PAST
            each.strikes = 1 if is_past else each.strikes + 1
            each.progress_at_death = each.num_tokens

    def acquit(self) -> None:
        """It was something else that the latest engine died of."""
        for each in self._struck:
            each.strikes -= 1
        self._struck = ()

    def convict(self) -> Submission | None:
        """Before another engine begins: the request that the latest died of, if that is known."""
        tried, self._tried = self._tried, None
        if tried is not None and tried.branches:
            if tried.strikes >= _GUILTY:
                return tried
            self._waiting.appendleft(tried)  # the engine died of something else, or before it came
        suspects = (each for each in self._struck if each.strikes >= _SUSPECT)
        self._waiting.extend(each for each in suspects if each not in self._waiting)
        return None

    def next(self, *, is_idle: bool, knows_ends: bool) -> Submission | None:
        """Whom to send to the engine now; None: nobody, as one is being tried or nobody is left.

        `is_idle`: the engine waits for something else than its own work; `knows_ends`: it has
        handled all that ended rows, and is at work at none of them. Whom a client has left while it
        was tried may be what the engine is about to die of.
        """
        if self._tried is not None:
            is_past = self._tried.num_tokens >= self._tried.progress_at_death + _PAST
            if self._tried.branches and not is_past and not is_idle:
                return None
            if not self._tried.branches and not knows_ends:
                return None
            self._tried.strikes = 0
            self._tried = None
        while self._waiting:
            each = self._waiting.popleft()
            if each.branches:
                self._tried = each
                return each
        return None
