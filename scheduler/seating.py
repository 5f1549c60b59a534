"""Seating: those who enter in a step get their seats and blocks, all at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cadenza.scheduler.candidates import Candidate, Entry
from cadenza.scheduler.planning import PlanBuilder
from cadenza.scheduler.prefix_index import Blocks
from cadenza.scheduler.stores import Stores
from cadenza.scheduler.table import Rows


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
        stores.pool.reserve(self._take(candidate, entry))
        if cold.host is not None:
            stores.host.release(block for _, block in cold.host.copied)
            cold.host = None
        if stores.credits.num_limited:
            stores.credits.set_aside(int(stores.table.credit[candidate.row]), candidate.choices)
        promise = candidate.tails
        if promise:
            promise = min(promise, max(0, stores.pool.num_available - promised))
        self.promised += promise
        self._entered.append((candidate, entry, promise))
        remaining = candidate.num_tokens - entry.computed
        plan.place_admitted(candidate.row, cold.choices, entry.computed, remaining)

    def enter_together(self, plan: PlanBuilder, group: Sequence[tuple[Candidate, Entry]]) -> None:
        """Let all of them enter, of one choice each and without limited credit or host copies."""
        stores, num_blocks = self._stores, 0
        for candidate, entry in group:
            num_blocks += self._take(candidate, entry)
            self._entered.append((candidate, entry, 0))
        stores.pool.reserve(num_blocks)
        plan.place_all_admitted(
            [candidate.row for candidate, _ in group],
            [candidate.cold.choices[0] for candidate, _ in group],
            [entry.computed for _, entry in group],
            [candidate.num_tokens - entry.computed for candidate, entry in group],
        )

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
        candidates, entries, promises = zip(*self._entered, strict=True)
        rows = np.array([candidate.row for candidate in candidates])
        table.seat_rows(rows, tables, np.array([entry.computed for entry in entries]))
        table.promised_blocks[rows] = promises
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

    def _take(self, candidate: Candidate, entry: Entry) -> int:
        """Take seats and what was found; returns how many blocks are lacking."""
        if len(entry.found):
            self._stores.pool.pin(entry.found)
        self._stores.table.take_seats(candidate.cold)
        self._count(candidate, entry)
        return candidate.blocks - len(entry.found)

    def _count(self, candidate: Candidate, entry: Entry) -> None:
        """Keep the statistics of the prefix cache: first admissions, and what is computed again."""
        totals, cold = self._stores.totals, candidate.cold
        if candidate.admission < 0:
            totals.prefix_queries += candidate.num_tokens
            totals.prefix_hits += entry.computed
        if cold.lost_tokens:
            totals.recomputed_tokens += max(0, cold.lost_tokens - entry.computed)
            cold.lost_tokens = 0
