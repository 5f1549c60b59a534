"""The invariants, recounted. Tests run this after every step."""

from __future__ import annotations

import numpy as np

from cadenza.scheduler.states import State
from cadenza.scheduler.stores import Stores


def check_invariants(stores: Stores) -> None:
    """Recount everything; raises AssertionError where the state contradicts itself."""
    _check_pools(stores)
    _check_rows(stores)
    _check_tails(stores)
    stores.prefixes.check()


def _check_pools(stores: Stores) -> None:
    table = stores.table
    stores.pool.check(table.blocks(row) for row in table.seated())
    assert sum(stores.pool.counts) == stores.config.num_blocks, "blocks are lost or doubled"
    copies = [table.cold(row).host for row in table if table.cold(row).host is not None]
    stores.host.check(block for copy in copies if copy for _, block in copy.copied)


def _check_rows(stores: Stores) -> None:
    table = stores.table
    seated, rows = table.seated(), np.array(list(table), dtype=np.intp)
    states = table.state[rows]
    seats = [seat for row in rows.tolist() for seat in table.cold(row).seats]
    assert len(set(seats)) == len(seats) == table.num_seats - table.free_seats
    has_seat = np.isin(states, (State.RUNNING.value, State.PARKED.value))
    assert set(rows[has_seat].tolist()) == set(seated.tolist()), "a seat without a running row"
    assert (table.waits[rows] == ~has_seat).all()
    assert not table.blocks_held[rows[~has_seat]].any(), "a waiting row holds blocks"
    for row in rows.tolist():
        cold = table.cold(row)
        assert len(cold.choices) == table.choices[row]
        assert (cold.host is not None) == (table.state[row] == State.SWAPPED.value)
        assert all(table.row_of(choice) == row for choice in cold.choices)
    capacity = table.blocks_held[seated] * stores.config.block_size
    assert (table.computed_tokens[seated] <= capacity).all()
    assert (table.computed_tokens[seated] < table.num_tokens[seated]).all()
    limited = table.credit[rows] != 0
    assert (stores.credits.left[table.credit[rows[limited]]] >= 0).all(), "a reader got too much"


def _check_tails(stores: Stores) -> None:
    """What a row will write next is its own, or it knows that it has to copy first."""
    table = stores.table
    for row in table.seated().tolist():
        first = int(table.computed_tokens[row]) // stores.config.block_size
        for block in table.blocks(row)[first:].tolist():
            shared = stores.pool.references[block] > 1
            assert not shared or table.shares_tail[row], "a row is about to write a shared block"
            assert block not in stores.pool.index, "a block that will be written is published"
