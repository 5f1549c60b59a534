"""Standard output of the commands, whose reader may leave and whose disk may be full."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable


class OutputError(Exception):
    """Nothing more can be written. `has_reader`: whether there is anybody who wanted it."""

    def __init__(self, error: OSError) -> None:
        super().__init__(f"the output cannot be written: {error.strerror}")
        self.has_reader = not isinstance(error, BrokenPipeError)


def write(text: str) -> None:
    """Write at once; what is left of it is dropped if that fails.

    Raises:
        OutputError: it cannot be written.
    """
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        # Python flushes again at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise OutputError(error) from error


def write_table(rows: Iterable[tuple[str, ...]]) -> None:
    """Write rows, columns as wide as they need to be.

    Raises:
        OutputError: as `write`.
    """
    table = list(rows)
    widths = [max(len(cell) for cell in column) for column in zip(*table, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    ]
    write("\n".join(lines) + "\n")
