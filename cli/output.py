"""What the commands write: to standard output, whose reader may leave and whose disk may be full,
and to standard error. Whatever a service or a model says, it steers no terminal.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from typing import TextIO

# All of them but tabs and line ends
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


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
        _write(sys.stdout, text)
    except OSError as error:
        # Python flushes again at its end
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        raise OutputError(error) from error


def complain(message: object) -> None:
    """Tell a person what is wrong, on standard error."""
    _write(sys.stderr, f"cadenza: {message}\n")


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


def _write(stream: TextIO, text: str) -> None:
    if stream.isatty():
        text = _CONTROLS.sub("", text)
    try:
        stream.write(text)
    except UnicodeEncodeError as error:  # half a surrogate pair, or not of this terminal's letters
        stream.write(text.encode(error.encoding, "replace").decode(error.encoding))
    stream.flush()
