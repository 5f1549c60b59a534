"""Seating: what a row takes when it enters, and what is written down once all have entered."""

import numpy as np
import pytest

from cadenza.policies.decisions import Decisions
from cadenza.policies.profile import Profile
from cadenza.scheduler.candidates import Candidate, Candidates, Entry
from cadenza.scheduler.config import SchedulerConfig
from cadenza.scheduler.costs import CostModel
from cadenza.scheduler.planning import PlanBuilder
from cadenza.scheduler.prefills import Prefills
from cadenza.scheduler.prefix import NO_KEYS, extend_keys
from cadenza.scheduler.prefix_index import Prefix
from cadenza.scheduler.request import Arrival, HostCopy
from cadenza.scheduler.seating import Seating
from cadenza.scheduler.states import State
from cadenza.scheduler.stores import Stores

SIZE = 4


class Stage:
    """Stores of 16 blocks and 4 seats, and a plan with nothing in it."""

    def __init__(self) -> None:
        config = SchedulerConfig(
            num_blocks=16,
            block_size=SIZE,
            max_model_len=32,
            max_num_seqs=4,
            max_num_batched_tokens=32,
            num_host_blocks=4,
        )
        self.stores = Stores(config, Decisions(Profile()), CostModel())
        self.plan = PlanBuilder(step_id=1, now_s=0.0, token_budget=32, block_size=SIZE)
        self.seating = Seating(self.stores)

    def wait(self, request: int, *prompt: int, n: int = 1, credit: int | None = None) -> int:
        arrival = Arrival(request=request, prompt=ids(*prompt), max_tokens=8, n=n)
        row = self.stores.table.add(arrival, 0.0)
        self.stores.table.credit[row] = self.stores.credits.open(credit, arrival.requests)
        self.stores.follow(row)
        return row

    def compute(self, *tokens: int) -> list[int]:
        """Somebody publishes these full blocks, and lets them go; returns them."""
        keys = extend_keys(NO_KEYS, "", ids(*tokens), SIZE, len(tokens) // SIZE)
        pool = self.stores.pool
        blocks = pool.allocate(len(keys))
        pool.publish(pool.index.root(""), keys, ids(*tokens).reshape(-1, SIZE), blocks.tolist())
        pool.release(blocks)
        return blocks.tolist()

    def candidate(self, row: int) -> Candidate:
        return next(self.candidates(row).since(0))

    def candidates(self, *rows: int) -> Candidates:
        places = np.array(rows, dtype=np.intp)
        return Candidates(self.stores.table, places, np.zeros(len(rows), dtype=bool))

    def enter(self, row: int, promised: int = 0) -> None:
        """With what of its prefix is cached, as an admission would let it."""
        found = self.stores.prefixes.found(row)
        entry = Entry(found, [], len(found) * SIZE)
        self.seating.enter(self.plan, self.candidate(row), entry, promised)

    def seat(self) -> None:
        """Seat who entered, and recount everything."""
        self.seating.seat(self.plan)
        table = self.stores.table
        self.stores.pool.check(table.blocks(row) for row in table.seated().tolist())

    def blocks(self, row: int) -> list[int]:
        return self.stores.table.blocks(row).tolist()

    def prefix(self, row: int) -> Prefix:
        table = self.stores.table
        return Prefix(int(table.prefix_block[row]), int(table.prefix_name[row]))


def ids(*tokens: int) -> np.ndarray:
    return np.array(tokens, dtype=np.int32)


@pytest.mark.parametrize("at_once", range(1, 4))
def test_candidates_are_the_rows_in_their_order_in_plain_numbers(
    monkeypatch: pytest.MonkeyPatch, at_once: int
):
    monkeypatch.setattr("cadenza.scheduler.candidates._AT_ONCE", at_once)
    stage = Stage()
    first = stage.wait(1, 1, 2, 3, 4, 5)
    second = stage.wait(2, 6, credit=7)
    table = stage.stores.table
    table.admission[first] = 3

    candidates = list(stage.candidates(second, first).since(0))

    assert candidates == [
        Candidate(second, table.cold(second), 1, -1, 1, 0.0, 1, 1, 0),
        Candidate(first, table.cold(first), 0, 3, 1, 0.0, 5, 2, 0),
    ]
    plain = [number for each in candidates for number in (each[0], *each[2:])]
    assert {type(number) for number in plain} == {int, float}
    assert not list(stage.candidates().since(0))


@pytest.mark.parametrize(("length", "tails"), [(1, 2), (3, 2), (4, 3), (5, 2), (8, 3)])
def test_several_choices_need_a_tail_each_beyond_the_blocks_of_their_prompt(
    length: int, tails: int
):
    """At a block edge all of them begin a block, and otherwise one writes in the prompt's last."""
    stage = Stage()

    candidate = stage.candidate(stage.wait(1, *range(length), n=3))

    assert candidate.choices == 3
    assert candidate.blocks == -(-length // SIZE)
    assert candidate.tails == tails


def test_a_row_that_enters_takes_at_once_what_the_next_must_not_have():
    stage = Stage()
    stage.compute(1, 2, 3, 4)
    row = stage.wait(1, 1, 2, 3, 4, 5, 6, n=2, credit=2)
    stores = stage.stores
    slot = int(stores.table.credit[row])
    assert stores.pool.num_available == 16

    stage.enter(row)

    assert stores.pool.num_available == 14, "the block it found, and the one it will get"
    assert stores.pool.counts.free == 15, "which is not taken yet"
    assert stores.table.free_seats == 2
    assert not stores.credits.has_spare(slot, 1)
    assert stage.seating.promised == 1
    assert stage.plan.seated == [row]
    assert (stage.plan.admitted, stage.plan.cached) == ([1, 2], [4, 4])
    _, counts = stage.plan.rows_and_counts(Prefills(), stores.table.admission)
    assert counts.tolist() == [2]


def test_rows_are_seated_together_each_with_what_it_found_and_blocks_of_its_own():
    stage = Stage()
    cached = stage.compute(1, 2, 3, 4, 5, 6, 7, 8)
    stranger = stage.wait(1, 9, 9)
    short = stage.wait(2, 1, 2, 3, 4, 5)
    long = stage.wait(3, *range(1, 14))
    for row in (long, stranger, short):
        stage.enter(row)
    stage.seat()

    table, index = stage.stores.table, stage.stores.pool.index
    assert stage.blocks(long)[:2] == cached
    assert stage.blocks(short)[:1] == cached[:1]
    assert [len(table.blocks(row)) for row in (long, stranger, short)] == [4, 1, 2]
    own = [*stage.blocks(long)[2:], *stage.blocks(stranger), *stage.blocks(short)[1:]]
    assert len({*own, *cached}) == len(own) + len(cached)
    assert stage.stores.pool.references[cached].tolist() == [2, 1]
    assert table.computed_tokens[[long, stranger, short]].tolist() == [8, 0, 4]
    assert table.published_blocks[[long, stranger, short]].tolist() == [2, 0, 1]
    root = index.root("")
    assert stage.prefix(long) == index.end(root, cached)
    assert stage.prefix(short) == index.end(root, cached[:1])
    assert stage.prefix(stranger) == root
    assert not any(row in stage.stores.prefixes for row in (long, stranger, short))
    assert table.admission[[long, stranger, short]].tolist() == [0, 1, 2]


def test_what_one_found_is_not_evicted_for_another_who_enters_in_the_same_step():
    """All other blocks are taken; the first could not compute what the second would overwrite."""
    stage = Stage()
    cached = stage.compute(1, 2, 3, 4)
    others = stage.stores.pool.allocate(12)
    finder, fresh = stage.wait(1, 1, 2, 3, 4, 5), stage.wait(2, *range(20, 28))

    stage.enter(finder)
    stage.enter(fresh)
    assert stage.stores.pool.num_available == 0
    stage.seating.seat(stage.plan)

    assert stage.blocks(finder)[:1] == cached
    assert not set(stage.blocks(fresh)) & set(cached)
    stage.stores.pool.check([others, *(stage.stores.table.blocks(row) for row in (finder, fresh))])


def test_a_host_copy_is_given_back_and_copied_to_the_blocks_it_belongs_in():
    stage = Stage()
    stores = stage.stores
    row = stage.wait(1, *range(1, 11))
    stage.enter(row)
    stage.seat()
    stores.pool.release(stores.table.blocks(row))
    stores.table.unseat_row(row, State.SWAPPED)
    copied = list(enumerate(stores.host.take(3)))
    stores.table.cold(row).host = HostCopy(copied, [], 9)
    cached = stage.compute(1, 2, 3, 4)

    found = np.array(cached, dtype=np.int32)
    entry = Entry(found, copied[1:], 9, from_host=True)
    stage.seating.enter(stage.plan, stage.candidate(row), entry, 0)
    stage.seat()

    blocks = stage.blocks(row)
    assert blocks[:1] == cached
    assert stage.plan.copies.swap_in == [(host, blocks[index]) for index, host in copied[1:]]
    assert stores.table.cold(row).host is None
    stores.host.settle()
    assert stores.host.num_free == 4
    assert stores.table.computed_tokens[row] == 9
    assert stores.table.published_blocks[row] == 1, "the others are published anew"


@pytest.mark.parametrize(
    ("taken", "promised", "expected"), [(0, 0, 3), (11, 0, 3), (12, 0, 2), (12, 1, 1), (12, 5, 0)]
)
def test_choices_are_promised_tails_as_far_as_there_are_blocks(
    taken: int, promised: int, expected: int
):
    """Beside what is promised to others; a row alone on the engine enters with fewer."""
    stage = Stage()
    others = stage.stores.pool.allocate(taken)
    row = stage.wait(1, *range(8), n=3)

    stage.enter(row, promised)
    assert stage.seating.promised == expected
    stage.seating.seat(stage.plan)

    assert stage.seating.promised == 0, "the row keeps it from now on"
    assert stage.stores.table.promised_blocks[row] == expected
    stage.stores.pool.check([others, stage.stores.table.blocks(row)])


def test_first_admissions_and_what_is_computed_again_are_counted():
    stage = Stage()
    stage.compute(1, 2, 3, 4)
    fresh, resumed = stage.wait(1, 1, 2, 3, 4, 5, 6), stage.wait(2, 1, 2, 3, 4, 7)
    table, totals = stage.stores.table, stage.stores.totals
    table.admission[resumed] = 5
    table.cold(resumed).lost_tokens = 7

    for row in (fresh, resumed):
        stage.enter(row)

    assert (totals.prefix_queries, totals.prefix_hits) == (6, 4)
    assert totals.recomputed_tokens == 7 - 4
    assert table.cold(resumed).lost_tokens == 0


def test_each_step_seats_those_who_entered_in_it():
    stage = Stage()
    first, second = stage.wait(1, 1, 2), stage.wait(2, 3, 4)
    stage.seat()
    assert not len(stage.stores.table.seated())

    stage.enter(first)
    stage.seat()
    before = stage.blocks(first)
    stage.enter(second)
    stage.seat()

    assert stage.blocks(first) == before
    assert sorted(stage.stores.table.running().tolist()) == [first, second]
