"""In which order rows may have to leave, and just enough of them, judged as a set."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cadenza.scheduler.columns import FloatColumn, IntColumn
from cadenza.scheduler.prefills import Counts
from cadenza.scheduler.prefix_index import Blocks
from cadenza.scheduler.states import State
from cadenza.scheduler.table import RequestTable, Rows

_FREE, _CAPPED, _PINNED, _OLDEST = range(4)


class Shortage(NamedTuple):
    """What is missing."""

    blocks: int
    seats: int = 0

    @property
    def is_none(self) -> bool:
        return self.blocks <= 0 and self.seats <= 0


def protection(
    table: RequestTable, rows: Rows, *, max_preemptions: int, host_is_full: bool
) -> IntColumn:
    """How far each row is from being a victim: 0 for parked and ordinary rows, then by rank.

    Parked rows come before all others by their own sorting in `eviction_order`. The rest are
    preferences, waived in this order: preempted too often, pinned or unwilling, and last the oldest
    that runs, which is therefore never short of anything.
    """
    ranks = np.full(len(rows), _FREE, dtype=np.int64)
    ranks[table.preemptions[rows] >= max_preemptions] = _CAPPED
    unwilling = ~table.may_recompute[rows] & (host_is_full | ~table.may_swap[rows])
    ranks[(table.generated_tokens[rows] < table.pinned_until[rows]) | unwilling] = _PINNED
    runs = table.state[rows] == State.RUNNING
    if runs.any():
        arrivals = np.where(runs, table.arrival[rows], np.iinfo(np.int64).max)
        ranks[int(arrivals.argmin())] = _OLDEST
    return ranks


def eviction_order(
    table: RequestTable, rows: Rows, ranks: IntColumn, scores: FloatColumn
) -> npt.NDArray[np.intp]:
    """Indices of `rows`, first victim first: parked, then by rank, score and newest admission."""
    return np.lexsort((-table.admission[rows], scores, ranks, ~table.parked[rows]))


def just_enough(
    tables: Iterable[Blocks],
    growth: Counts,
    seats: Sequence[int],
    shortage: Shortage,
    references: Blocks,
) -> npt.NDArray[np.intp]:
    """Indices of the victims that end the shortage, in the given order of preference.

    A victim gives its seats, the blocks that the whole set holds alone, and its own growth, which
    it no longer needs. Takes from the front until the shortage is over, then spares whoever turned
    out not to be needed, the least preferred first. Empty if not even all of them suffice.

    Args:
        tables: block tables, most preferred victim first; no block twice in one table.
        growth: blocks that each of them was about to take.
        seats: seats that each of them has.
        shortage: what is missing.
        references: by block, how many tables hold it. Not changed.
    """
    left = references.copy()
    chosen: list[int] = []
    taken: list[Blocks] = []
    blocks_gained = seats_gained = 0
    for index, table in enumerate(tables):
        if blocks_gained >= shortage.blocks and seats_gained >= shortage.seats:
            break
        taken.append(table)
        left[table] -= 1
        blocks_gained += int((left[table] == 0).sum() + growth[index])
        seats_gained += seats[index]
        chosen.append(index)
    if blocks_gained < shortage.blocks or seats_gained < shortage.seats:
        return np.empty(0, dtype=np.intp)
    for index in reversed(chosen[:-1]):
        table = taken[index]
        blocks = blocks_gained - int((left[table] == 0).sum() + growth[index])
        if blocks >= shortage.blocks and seats_gained - seats[index] >= shortage.seats:
            left[table] += 1
            blocks_gained, seats_gained = blocks, seats_gained - seats[index]
            chosen.remove(index)
    return np.array(chosen, dtype=np.intp)
