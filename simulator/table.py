"""A report as text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from cadenza.simulator.sections import Figures, Section, heading, sections


def table(report: Figures) -> str:
    """What was tried, its tables, and what whoever reads them has to know."""
    parts = ["\n".join(heading(report)), *map(_drawn, sections(report)), *report["remarks"]]
    return "\n\n".join(parts) + "\n"


def _drawn(section: Section) -> str:
    text = _aligned([section.head, *section.rows])
    return f"{text}\n{section.note}" if section.note else text


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    """Names to the left, figures to the right of their columns."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if rank == 0 else cell.rjust(width)
            for rank, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )
