"""A way for tokens past whoever reads their generation."""

from __future__ import annotations

from typing import Protocol


class Tap(Protocol):
    """What may take tokens past the reader. False: one cannot be passed on at once."""

    def take_plain(self, token: int) -> bool:
        """Take a token whose text is the same anywhere, if that is so by `TokenTexts`."""

    def take(self, token: int, text: str) -> bool:
        """Take any token, with the text that it completes, perhaps none."""
