"""From placed rows to the arrays a runner needs, without a Python loop over decoding rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cadenza.scheduler.plan import Int32Array, Seated, StepPlan
from cadenza.scheduler.planning import Counts
from cadenza.scheduler.table import RequestTable, Rows


def assemble(
    table: RequestTable, rows: Rows, counts: Counts, step_id: int, admitted: Sequence[int]
) -> StepPlan:
    """The plan in which each of `rows` computes the next `counts` of its tokens."""
    seats, context = table.seat[rows], table.computed_tokens[rows]
    ends = np.cumsum(counts)
    within = np.arange(int(ends[-1])) - np.repeat(ends - counts, counts)
    positions = np.repeat(context, counts) + within
    size = table.block_size
    blocks = table.block_table[np.repeat(seats, counts), positions // size]
    used = (context + counts + size - 1) // size
    widest = int(used.max())
    return StepPlan(
        step_id=step_id,
        requests=table.request[rows],
        seats=seats.astype(np.int32),
        num_context=context.astype(np.int32),
        num_new=counts.astype(np.int32),
        samples=context + counts == table.num_tokens[rows],
        tokens=_tokens(table, rows, counts, ends),
        positions=positions.astype(np.int32),
        slots=blocks.astype(np.int64) * size + positions % size,
        block_tables=np.where(
            np.arange(widest) < used[:, None], table.block_table[seats, :widest], 0
        ).astype(np.int32),
        seated=tuple(Seated(int(table.seat[row]), int(table.request[row])) for row in admitted),
    )


def _tokens(table: RequestTable, rows: Rows, counts: Counts, ends: Counts) -> Int32Array:
    """The ids to compute: a row's newest from the tail buffer, a prefill's from its history."""
    tokens = np.empty(int(ends[-1]), dtype=np.int32)
    last = table.num_tokens[rows] - 1
    newest = table.computed_tokens[rows] == last
    single = rows[newest]
    tokens[ends[newest] - 1] = table.tail[table.seat[single], last[newest] % table.block_size]
    for index in np.flatnonzero(~newest):
        row, count, end = rows[index], int(counts[index]), int(ends[index])
        start = int(table.computed_tokens[row])
        tokens[end - count : end] = table.cold(row).tokens[start : start + count]
    return tokens
