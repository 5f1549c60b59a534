"""A way for tokens past whoever reads their generation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

# Takes a plain token of each tap, in order. False: it has taken none, and each is to be asked
TakeAll: TypeAlias = Callable[[Sequence[int]], bool]


class Way(Protocol):
    """Where several taps may lead."""

    def together(self, taps: Sequence[Any]) -> TakeAll:
        """What takes from all of them at once, as `take_plain` would from each, or from none."""


class Tap(Protocol):
    """What may take tokens of one choice past the reader. False: one cannot be passed on at once.

    What is taken comes to its client at once. What else becomes of plain tokens is told by `told`.
    """

    @property
    def way(self) -> Way | None:
        """Shared with others, by which a step costs less; None: it leads where no other does."""

    def take_plain(self, token: int) -> bool:
        """Take a token whose text is the same anywhere, if that is so by `TokenTexts`."""

    def take(self, token: int, text: str) -> bool:
        """Take any token, with the text that it completes, perhaps none."""

    def told(self, tokens: Sequence[int]) -> None:
        """These plain tokens were taken, some time ago, but before any other of the choice."""
