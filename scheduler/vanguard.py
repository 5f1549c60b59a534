"""The vanguard: the first candidates, as many as lack nothing, who enter all at once.

Mostly whoever is next can have the seats and blocks that there are, which is soon seen of all of
them. `Admission` looks one by one at those behind.
"""

from __future__ import annotations

import numpy as np

from cadenza.scheduler.candidates import COLD, Candidate, Candidates, Entry
from cadenza.scheduler.credits import UNLIMITED
from cadenza.scheduler.planning import PlanBuilder
from cadenza.scheduler.states import State
from cadenza.scheduler.stores import Stores
from cadenza.scheduler.table import Rows

_SWAPPED = State.SWAPPED.value


def vanguard(
    stores: Stores, plan: PlanBuilder, candidates: Candidates, promised: int
) -> list[tuple[Candidate, Entry]]:
    """The first of the candidates who lack nothing, each after those before it.

    Nobody is among them in whom more has to be looked at: several choices, limited credit, a copy
    on the host; and nobody at all while nothing runs, when less is asked of a row. A block that
    several of them found counts for each if nobody holds it, so that whoever comes behind may lack
    nothing either.

    `promised` is how many blocks stay free for others, beside the watermark and what
    `Candidates.keep` says.
    """
    num = 0 if plan.is_empty else _num_plain(stores, candidates.rows[: stores.table.free_seats])
    if not num:
        return []
    pool, size = stores.pool, stores.table.block_size
    left = pool.num_available - stores.watermark - promised
    group: list[tuple[Candidate, Entry]] = []
    for kept, candidate in zip(candidates.keep[1 : num + 1], candidates.since(0), strict=False):
        entry, found = COLD, stores.prefixes.found(candidate.row)
        left -= candidate.blocks
        if len(found):  # what others hold costs nothing
            entry = Entry.warm(found, size)
            left += len(found) - pool.num_unheld(found)
        if left < kept:
            break
        group.append((candidate, entry))
    return group[: plan.num_with_room([each.num_tokens - entry.computed for each, entry in group])]


def _num_plain(stores: Stores, rows: Rows) -> int:
    """How many come before the first in whom more than its length has to be looked at."""
    table, credits = stores.table, stores.credits
    if not (table.num_several or table.num_swapped or credits.num_limited):
        return len(rows)
    is_plain = np.ones(len(rows), dtype=bool)
    if table.num_several:
        is_plain &= table.choices[rows] == 1
    if table.num_swapped:
        is_plain &= table.state[rows] != _SWAPPED
    if credits.num_limited:
        is_plain &= table.credit[rows] == UNLIMITED
    return len(rows) if is_plain.all() else int(is_plain.argmin())
