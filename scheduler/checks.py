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
    stores.pool.check(table.blocks(row) for row in table.seated().tolist())
    assert sum(stores.pool.counts) == stores.config.num_blocks, "blocks are lost or doubled"
    copies = [table.cold(row).host for row in table]
    stores.host.check(block for copy in copies if copy for _, block in copy.copied)


def _check_rows(stores: Stores) -> None:
    table = stores.table
    seated, used = table.seated(), list(table)
    rows, cold = np.array(used, dtype=np.intp), [table.cold(row) for row in used]
    states, choices = table.state[rows], table.choices[rows].tolist()
    seats = [seat for each in cold for seat in each.seats]
    assert len(set(seats)) == len(seats) == table.num_seats - table.free_seats
    has_seat = (states == State.RUNNING) | (states == State.PARKED)
    assert set(rows[has_seat].tolist()) == set(seated.tolist()), "a seat without a running row"
    assert (table.waits[rows] == ~has_seat).all()
    assert not table.blocks_held[rows[~has_seat]].any(), "a waiting row holds blocks"
    assert [len(each.choices) for each in cold] == choices
    assert len(table) == sum(choices)
    assert table.num_several == sum(num > 1 for num in choices)
    assert table.may_share_tails or not table.shares_tail[rows].any()
    on_host = [each.host is not None for each in cold]
    assert on_host == (states == State.SWAPPED).tolist()
    for row, each in zip(used, cold, strict=True):
        for choice in each.choices:
            assert table.row_of(choice) == row
    computed = table.computed_tokens[seated]
    assert (computed <= table.blocks_held[seated] * stores.config.block_size).all()
    assert (computed < table.num_tokens[seated]).all()
    stores.credits.check(table.credit[rows])
    follows = ~has_seat & (states != State.SWAPPED) & stores.config.enable_prefix_caching
    followed = [row in stores.prefixes for row in used]
    assert followed == follows.tolist(), "a row that is to be computed is not matched, or another"


def _check_tails(stores: Stores) -> None:
    """What a row will write next is its own, or it knows that it has to copy first."""
    table, index, references = stores.table, stores.pool.index, stores.pool.references
    for row in table.seated().tolist():
        first = int(table.computed_tokens[row]) // stores.config.block_size
        for block in table.blocks(row)[first:].tolist():
            shared = references[block] > 1
            assert not shared or table.shares_tail[row], "a row is about to write a shared block"
            assert not index.names[block], "a block that will be written is published"
