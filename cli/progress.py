"""What a person sees while something takes long: a live line on a terminal, else a line a stage."""

from __future__ import annotations

import contextlib
from typing import TextIO

from cadenza.wire import messages

_CELLS = 20  # of a bar


class Progress:
    """Writes to `out`. On a terminal the line of a stage is rewritten as it moves on."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._is_live = out.isatty()
        self._stage: str | None = None

    def note(self, text: str) -> None:
        """A line of its own."""
        self._write(f"{text}\n")

    def show(self, progress: messages.Progress) -> None:
        """How far it is by now."""
        if self._is_live:
            self._write(f"\r\x1b[2K  {progress.stage}{_share(progress)}")
        elif progress.stage != self._stage:
            self._write(f"  {progress.stage}\n")
        self._stage = progress.stage

    def done(self) -> None:
        """It is over, one way or the other: clear the live line. Idempotent."""
        if self._is_live and self._stage is not None:
            self._write("\r\x1b[2K")
        self._stage = None

    def _write(self, text: str) -> None:
        # A reader that has seen enough (`| head`) is no reason to stop serving.
        with contextlib.suppress(OSError, ValueError):
            self._out.write(text)
            self._out.flush()


def _share(progress: messages.Progress) -> str:
    """A bar and the figures; nothing where nothing can be counted."""
    if not progress.total:
        return ""
    cells = _CELLS * progress.done // progress.total
    return f" [{'#' * cells}{'.' * (_CELLS - cells)}] {progress.done}/{progress.total}"
