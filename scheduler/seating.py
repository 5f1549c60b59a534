"""Seating: those who enter in a step get their seats and blocks, all at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from cadenza.scheduler.blocks import Blocks
from cadenza.scheduler.planning import PlanBuilder
from cadenza.scheduler.request import Request
from cadenza.scheduler.stores import Stores
from cadenza.scheduler.table import RequestTable, Rows


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


COLD = Entry(np.empty(0, dtype=np.intp), (), 0)  # it computes all of them


def candidates_of(table: RequestTable, rows: Rows, num_likely: int) -> Iterator[Candidate]:
    """The rows, in their order. Those behind `num_likely` are looked at only if they are needed."""
    yield from _plain(table, rows[:num_likely])
    if num_likely < len(rows):
        yield from _plain(table, rows[num_likely:])


def _plain(table: RequestTable, rows: Rows) -> Iterator[Candidate]:
    size, choices, num_tokens = table.block_size, table.choices[rows], table.num_tokens[rows]
    blocks = -(-num_tokens // size)
    tails = np.zeros(len(rows), dtype=np.int64)
    if table.num_several:
        tails = np.where(choices > 1, table.prompt_tokens[rows] // size + choices - blocks, 0)
    columns = (
        table.arrival[rows],
        table.admission[rows],
        choices,
        table.waits_since_s[rows],
        num_tokens,
        blocks,
        tails,
    )
    plain, numbers = rows.tolist(), (column.tolist() for column in columns)
    return map(Candidate._make, zip(plain, map(table.cold, plain), *numbers, strict=True))


class Seating:
    """Takes what each row needs when it enters, and writes it down for all of them together."""

    def __init__(self, stores: Stores) -> None:
        self._stores = stores
        self._entered: list[tuple[Candidate, Entry, int]] = []  # and blocks promised
        self.promised = 0  # blocks, to those who entered and are not seated yet

    def enter(self, plan: PlanBuilder, candidate: Candidate, entry: Entry, promised: int) -> None:
        """Take seats and what was found, and reserve the other blocks.

        `promised` is what others are promised; the row is promised no more than there is beside it.
        """
        stores, cold = self._stores, candidate.cold
        if len(entry.found):
            stores.pool.pin(entry.found)
        stores.pool.reserve(candidate.blocks - len(entry.found))
        stores.table.take_seats(cold)
        if cold.host is not None:
            stores.host.release(block for _, block in cold.host.copied)
            cold.host = None
        if stores.credits.num_limited:
            stores.credits.set_aside(int(stores.table.credit[candidate.row]), candidate.choices)
        self._count(candidate, entry)
        promise = candidate.tails
        if promise:
            promise = min(promise, max(0, stores.pool.num_available - promised))
        self.promised += promise
        self._entered.append((candidate, entry, promise))
        remaining = candidate.num_tokens - entry.computed
        plan.place_admitted(candidate.row, cold.choices, entry.computed, remaining)

    def seat(self, plan: PlanBuilder) -> None:
        """Seat all who entered, with the blocks reserved for them."""
        if not self._entered:
            return
        stores, table = self._stores, self._stores.table
        fresh, start = stores.pool.allocate_reserved(), 0
        tables: list[Blocks] = []
        for candidate, entry, _ in self._entered:
            end = start + candidate.blocks - len(entry.found)
            blocks = fresh[start:end]
            if len(entry.found):
                blocks = np.concatenate((entry.found, blocks))
            if entry.from_host:
                plan.copies.swap_in += [(host, int(blocks[index])) for index, host in entry.copied]
            tables.append(blocks)
            start = end
        rows = np.array([candidate.row for candidate, _, _ in self._entered])
        table.seat_rows(rows, tables, np.array([entry.computed for _, entry, _ in self._entered]))
        table.promised_blocks[rows] = [promise for _, _, promise in self._entered]
        self._set_prefixes(rows)
        self._entered.clear()
        self.promised = 0

    def _set_prefixes(self, rows: Rows) -> None:
        """What they found are the publications that their blocks continue."""
        table, index = self._stores.table, self._stores.pool.index
        self._stores.prefixes.remove(rows)
        ends = []
        for candidate, entry, _ in self._entered:
            ends.append(index.end(index.root(candidate.cold.salt), entry.found))
        table.prefix_block[rows], table.prefix_name[rows] = zip(*ends, strict=True)
        table.published_blocks[rows] = [len(entry.found) for _, entry, _ in self._entered]

    def _count(self, candidate: Candidate, entry: Entry) -> None:
        """Keep the statistics of the prefix cache: first admissions, and what is computed again."""
        totals, cold = self._stores.totals, candidate.cold
        if candidate.admission < 0:
            totals.prefix_queries += candidate.num_tokens
            totals.prefix_hits += entry.computed
        if cold.lost_tokens:
            totals.recomputed_tokens += max(0, cold.lost_tokens - entry.computed)
            cold.lost_tokens = 0
