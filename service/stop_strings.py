"""Looks for a request's stop strings in text that arrives in pieces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Found(NamedTuple):
    """What a piece of text brought."""

    text: str  # may be shown; of a stop string it has all or nothing
    stop: str | None  # the stop string that ends the output


class StopStrings:
    """Finds the stop string that is complete first; of those, the one that began first.

    That rule, and not "the one that began first", gives the same answer however the text was cut.
    Only a suffix that may still become a stop string is held back.
    """

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        """`include`: the stop string that is found is part of the text."""
        self._stops = tuple(stops)
        self._include = include
        self._held = ""
        self._openers = frozenset(stop[0] for stop in self._stops)

    def push(self, text: str) -> Found:
        """The text that is now safe to show, and the stop string found, if any."""
        if not self._held and self._openers.isdisjoint(text):
            return Found(text, None)  # nearly always: no stop string begins here
        text = self._held + text
        match = min((m for stop in self._stops if (m := _match(text, stop))), default=None)
        if match is not None:
            self._held = ""
            end, start, stop = match
            return Found(text[: end if self._include else start], stop)
        safe = len(text) - self._open_length(text)
        self._held = text[safe:]
        return Found(text[:safe], None)

    def flush(self) -> str:
        """The text held back, once the output has ended without a stop string."""
        held, self._held = self._held, ""
        return held

    def _open_length(self, text: str) -> int:
        """The length of the longest suffix that some stop string begins with."""
        longest = max(map(len, self._stops)) - 1
        for start in range(max(0, len(text) - longest), len(text)):
            if any(stop.startswith(text[start:]) for stop in self._stops):
                return len(text) - start
        return 0


def _match(text: str, stop: str) -> tuple[int, int, str] | None:
    start = text.find(stop)
    return None if start < 0 else (start + len(stop), start, stop)
