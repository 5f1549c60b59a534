"""What the running rows need before anybody else may have anything."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cadenza.scheduler.columns import IntColumn, where
from cadenza.scheduler.planning import PlanBuilder
from cadenza.scheduler.stores import Stores
from cadenza.scheduler.table import Rows


class Budget(NamedTuple):
    """The rows that may run in this step, and the blocks that are left beside them."""

    running: Rows
    growth: IntColumn  # blocks that each is about to write beyond those it holds alone
    promised: int  # blocks that choices still to be forked will need for their tails
    spare: int  # available blocks less growth and promises; negative: over-committed


def measure(stores: Stores) -> Budget:
    """Count what the rows with a seat and with credit write in this step."""
    running = _with_credit(stores, stores.table.running())
    growth = growth_of(stores, running)
    promised = promised_to(stores)
    spare = stores.pool.num_available - int(growth.sum()) - promised
    return Budget(running, growth, promised, spare)


def promised_to(stores: Stores) -> int:
    """Blocks that the choices of rows with a seat will need for tails of their own."""
    table = stores.table
    return int(table.promised_blocks[table.seated()].sum()) if table.num_several else 0


def growth_of(stores: Stores, rows: Rows) -> IntColumn:
    """Blocks that each of the rows needs for its next token; 0 for one that prefills.

    A prefilling row got the blocks of its whole prompt when it was admitted. A row that decodes
    needs one when it steps over the edge of its last block, or when others hold that block too.
    """
    table = stores.table
    over_edge = table.num_tokens[rows] > table.blocks_held[rows] * table.block_size
    growth = over_edge.astype(np.int64)
    if table.may_share_tails:
        sharing = table.shares_tail[rows]
        growth[sharing] = _copies(stores, rows[sharing])
    return growth


def _copies(stores: Stores, rows: Rows) -> IntColumn:
    """Who of the rows has to copy its tail: all holders but the last, and that is the oldest."""
    table = stores.table
    tails = table.block_table[table.seat[rows], table.blocks_held[rows] - 1]
    copies = np.ones(len(rows), dtype=np.int64)
    writers: dict[int, list[int]] = {}
    for index in np.argsort(table.admission[rows]).tolist():
        writers.setdefault(int(tails[index]), []).append(index)
    for tail, indices in writers.items():
        if len(indices) == stores.pool.references[tail]:
            copies[indices[0]] = 0
    return copies


def place_running(stores: Stores, plan: PlanBuilder, rows: Rows, growth: IntColumn) -> None:
    """Give the rows the blocks that they grow by, and place them."""
    table, pool = stores.table, stores.pool
    growing = rows[growth > 0]
    if table.may_share_tails:
        copying = table.shares_tail[growing]
        _copy_tails(stores, plan, growing[copying])
        growing = growing[~copying]
        table.own_tails(rows)
    table.append_blocks(growing, pool.allocate(len(growing)))
    remaining = table.num_tokens[rows] - table.computed_tokens[rows]
    prefilling = where(remaining > 1)
    prefills, decodes = rows[prefilling], rows
    if len(prefills):
        decodes = np.delete(rows, prefilling)
        prefilling = prefilling[np.argsort(table.admission[prefills])]
    plan.place_running(decodes, rows[prefilling], remaining[prefilling])


def _copy_tails(stores: Stores, plan: PlanBuilder, rows: Rows) -> None:
    """Give each of the rows a copy of its last block in place of that."""
    for row in rows.tolist():
        tail = stores.table.blocks(row)[-1:].copy()
        copy = int(stores.pool.allocate(1)[0])
        plan.copies.on_write.append((int(tail[0]), copy))
        stores.table.replace_tail(row, copy)
        stores.pool.release(tail)


def _with_credit(stores: Stores, rows: Rows) -> Rows:
    """The rows, less those whose turn would take more tokens than their reader takes.

    A row that is not parked has a reader with credit, but perhaps not for all rows of the stream.
    """
    stores.credits.begin()
    if not stores.credits.num_limited:
        return rows
    table = stores.table
    rows = rows[np.argsort(table.admission[rows])]
    chosen: Rows = rows[stores.credits.reserve(table.credit[rows], table.choices[rows])]
    return chosen
