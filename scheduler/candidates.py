"""Candidates: the first in line of those who wait, and what each would take with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import NamedTuple

import numpy as np

from cadenza.scheduler.columns import BoolColumn
from cadenza.scheduler.prefix_index import Blocks
from cadenza.scheduler.request import Request
from cadenza.scheduler.table import RequestTable, Rows

_AT_ONCE = 16  # candidates, before twice as many


class Candidate(NamedTuple):
    """A waiting row, its columns in plain numbers, as admission reads each several times."""

    row: int
    cold: Request
    arrival: int
    admission: int  # -1: never yet
    choices: int
    waits_since_s: float
    num_tokens: int
    blocks: int  # that these tokens take
    tails: int  # blocks beyond those, so that each of several choices has a tail of its own


class Entry(NamedTuple):
    """How a waiting row comes by the keys and values that it need not compute."""

    found: Blocks  # the first of its block table, published
    copied: Sequence[tuple[int, int]]  # (index in its block table, host block)
    computed: int  # tokens
    from_host: bool = False

    @classmethod
    def warm(cls, found: Blocks, block_size: int) -> Entry:
        """With these blocks of the prefix cache, if any."""
        return cls(found, (), len(found) * block_size) if len(found) else COLD


COLD = Entry(np.empty(0, dtype=np.intp), (), 0)  # it computes all of them


class Candidates:
    """Waiting rows in the order in which they may enter. Arrays have one element a row."""

    def __init__(self, table: RequestTable, rows: Rows, starving: BoolColumn) -> None:
        self._table = table
        self.rows = rows
        self.starving = starving
        self.keep: list[int] = []  # blocks to keep free once the first 0, 1, ... of them entered

    def __len__(self) -> int:
        return len(self.rows)

    def since(self, first: int) -> Iterator[Candidate]:
        """Those from `first` on, one by one; nobody is looked at long before it is asked for."""
        size = _AT_ONCE
        while first < len(self):
            yield from self._plain(first, first + size)
            first, size = first + size, 2 * size

    def _plain(self, first: int, end: int) -> Iterator[Candidate]:
        """Those from `first` to before `end`."""
        table, rows = self._table, self.rows[first:end]
        choices, num_tokens = table.choices[rows], table.num_tokens[rows]
        blocks = -(-num_tokens // table.block_size)
        tails: list[int] | repeat[int] = repeat(0)
        if table.num_several:
            full = table.prompt_tokens[rows] // table.block_size
            tails = np.where(choices > 1, full + choices - blocks, 0).tolist()
        columns = (
            table.arrival[rows],
            table.admission[rows],
            choices,
            table.waits_since_s[rows],
            num_tokens,
            blocks,
        )
        plain, numbers = rows.tolist(), [column.tolist() for column in columns]
        cold = map(table.cold, plain)
        return map(Candidate._make, zip(plain, cold, *numbers, tails, strict=False))
