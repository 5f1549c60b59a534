"""Tables on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable


def write_table(rows: Iterable[tuple[str, ...]]) -> None:
    """Write rows to standard output, columns as wide as they need to be."""
    table = list(rows)
    widths = [max(len(cell) for cell in column) for column in zip(*table, strict=True)]
    for row in table:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        sys.stdout.write("  ".join(cells).rstrip() + "\n")
