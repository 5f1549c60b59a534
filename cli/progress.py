"""What a person sees while the engine loads: one live line on a terminal, else a line a stage."""

from __future__ import annotations

from typing import TextIO

from cadenza.wire import messages


class Progress:
    """Writes to `out`. On a terminal the line of a stage is rewritten as it moves on."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._is_live = out.isatty()
        self._stage: str | None = None

    def note(self, text: str) -> None:
        """A line of its own."""
        self._out.write(f"{text}\n")
        self._out.flush()

    def show(self, progress: messages.Progress) -> None:
        """The engine's latest word."""
        if self._is_live:
            share = f" {progress.done}/{progress.total}" if progress.total else ""
            self._out.write(f"\r\x1b[2K  {progress.stage}{share}")
        elif progress.stage != self._stage:
            self._out.write(f"  {progress.stage}\n")
        self._stage = progress.stage
        self._out.flush()

    def done(self) -> None:
        """Loading is over, one way or the other: clear the live line. Idempotent."""
        if self._is_live and self._stage is not None:
            self._out.write("\r\x1b[2K")
            self._out.flush()
        self._stage = None
