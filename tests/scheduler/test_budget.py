"""What running rows write next: blocks over an edge, and copies of blocks that others hold too."""

from itertools import permutations

import numpy as np
import pytest

from cadenza.policies.decisions import Decisions
from cadenza.policies.profile import Profile
from cadenza.scheduler.budget import growth_of, measure
from cadenza.scheduler.config import SchedulerConfig
from cadenza.scheduler.costs import CostModel
from cadenza.scheduler.request import Arrival
from cadenza.scheduler.states import FinishReason
from cadenza.scheduler.stores import Stores
from cadenza.testing import Driver, oracle

SIZE = 4  # the driver's block size


def prompt_of(length: int) -> list[int]:
    return list(range(1, length + 1))


def tables(driver: Driver) -> dict[int, list[int]]:
    """The block table of each planned request, as far as its context and new tokens go."""
    plan = driver.plan
    assert plan is not None
    used = -(-(plan.num_context + plan.num_new) // SIZE)
    return {
        request: table[:num].tolist()
        for request, table, num in zip(
            plan.requests.tolist(), plan.layout().block_tables, used.tolist(), strict=True
        )
    }


def held(driver: Driver) -> int:
    statistics = driver.scheduler.statistics()
    return statistics.total_blocks - statistics.free_blocks - statistics.cached_blocks


def assert_the_pool_is_as_at_the_start(driver: Driver) -> None:
    driver.run()
    driver.scheduler.reset_prefix_cache()
    assert driver.scheduler.statistics().free_blocks == driver.scheduler.config.num_blocks


@pytest.mark.parametrize("length", [1, 3, 4, 5, 6, 7, 8, 9])
def test_choices_share_the_prompt_and_copy_its_partial_block_at_the_first_write(length: int):
    """At a block edge there is nothing to copy: each choice starts a block of its own."""
    driver = Driver()
    driver.add(1, prompt_of(length), max_tokens=6, n=3)
    driver.step()
    assert driver.plan is not None
    assert driver.plan.requests.tolist() == [1]
    assert driver.plan.sample_requests.tolist() == [1, 2, 3]
    assert held(driver) == -(-length // SIZE)
    prompt_blocks = tables(driver)[1]

    driver.step()

    full, partial = divmod(length, SIZE)
    after = tables(driver)
    assert [after[choice][:full] for choice in (1, 2, 3)] == [prompt_blocks[:full]] * 3
    own = [after[choice][full] for choice in (1, 2, 3)]
    assert len({*own, *prompt_blocks[:full]}) == full + 3
    assert held(driver) == full + 3
    copies = driver.plan.copies
    if partial:
        assert own[0] == prompt_blocks[full], "the oldest writes in place"
        assert copies.on_write.tolist() == [[own[0], own[1]], [own[0], own[2]]]
    else:
        assert copies.on_write.tolist() == []
    assert len(copies.swap_out) == len(copies.swap_in) == 0

    driver.step()
    assert driver.plan.copies.on_write.tolist() == []
    assert_the_pool_is_as_at_the_start(driver)
    assert driver.tokens == {
        choice: oracle(prompt_of(length), 6, choice - 1) for choice in (1, 2, 3)
    }
    assert driver.preempted == []


@pytest.mark.parametrize("length", [6, 7, 8])
@pytest.mark.parametrize("before", [1, 2, 3])
@pytest.mark.parametrize("leave", ["drop", "finish"])
def test_choices_leave_in_every_order_and_the_others_go_on(length: int, before: int, leave: str):
    """The first leaves after `before` steps: before anybody wrote, or after one write or two."""
    prompt = prompt_of(length)
    for order in permutations((1, 2, 3)):
        driver = Driver()
        driver.add(1, prompt, max_tokens=9, n=3)
        for _ in range(before):
            driver.step()
        for choice in order[:2]:
            getattr(driver.scheduler, leave)(choice)
            driver.step()

        assert_the_pool_is_as_at_the_start(driver)

        assert driver.tokens[order[2]] == oracle(prompt, 9, order[2] - 1)
        assert driver.ends == {order[2]: FinishReason.LENGTH}
        for place, choice in enumerate(order[:2]):
            got = driver.tokens[choice]
            # The token in flight when a choice leaves is still reported
            assert got == oracle(prompt, before + place, choice - 1)


@pytest.mark.parametrize(
    ("gone", "copied"),
    [([1], [3]), ([2], [3]), ([3], [2]), ([1, 2], []), ([1, 3], []), ([2, 3], [])],
)
def test_who_leaves_before_the_first_write_needs_no_copy(gone: list[int], copied: list[int]):
    driver = Driver()
    driver.add(1, prompt_of(6), n=3)
    driver.step()
    tail = tables(driver)[1][-1]
    for choice in gone:
        driver.scheduler.drop(choice)

    driver.step()

    after = tables(driver)
    stays = [choice for choice in (1, 2, 3) if choice not in gone]
    assert list(after) == stays
    assert after[stays[0]][-1] == tail, "the oldest that is left writes in place"
    assert driver.plan is not None
    assert driver.plan.copies.on_write.tolist() == [[tail, after[choice][-1]] for choice in copied]
    assert_the_pool_is_as_at_the_start(driver)


def test_all_choices_dropped_at_once_leave_nothing():
    driver = Driver()
    driver.add(1, prompt_of(6), n=3)
    driver.step()
    for choice in (2, 1, 3):
        driver.scheduler.drop(choice)

    driver.step()

    assert driver.plan is None
    assert_the_pool_is_as_at_the_start(driver)


def test_choices_that_end_with_their_first_token_copy_nothing():
    driver = Driver()
    driver.add(1, prompt_of(6), max_tokens=1, n=3)
    driver.step()

    driver.step()

    assert driver.plan is None
    assert driver.tokens == {choice: oracle(prompt_of(6), 1, choice - 1) for choice in (1, 2, 3)}
    assert_the_pool_is_as_at_the_start(driver)


def test_a_choice_that_stops_at_its_first_token_leaves_the_others_one_copy():
    prompt = prompt_of(6)
    driver = Driver()
    driver.add(1, prompt, n=3, stop_token_ids=frozenset(oracle(prompt, 1, 1)))
    driver.step()
    driver.step()

    assert driver.ends == {2: FinishReason.STOP_TOKEN}
    assert driver.plan is not None
    assert len(driver.plan.copies.on_write) == 1
    assert_the_pool_is_as_at_the_start(driver)
    assert driver.tokens[3] == oracle(prompt, 4, 2)


def test_a_choice_that_failed_ends_alone():
    driver = Driver()
    driver.runner.fail = {2}
    driver.add(1, prompt_of(6), n=3)

    assert_the_pool_is_as_at_the_start(driver)

    assert driver.ends == {
        1: FinishReason.LENGTH,
        2: FinishReason.FAILED,
        3: FinishReason.LENGTH,
    }
    assert driver.tokens == {1: oracle(prompt_of(6), 4, 0), 3: oracle(prompt_of(6), 4, 2)}


def test_with_credit_for_one_choice_even_the_oldest_copies_while_the_others_still_share():
    """Those that wait for credit hold the block as it was; the last of them writes in place."""
    driver = Driver()
    driver.add(1, prompt_of(6), n=3, credit=4)
    driver.step()
    tail = tables(driver)[1][-1]

    driver.step()
    first = tables(driver)
    assert list(first) == [1]
    assert driver.plan is not None
    assert driver.plan.copies.on_write.tolist() == [[tail, first[1][-1]]]

    driver.step()
    assert driver.scheduler.statistics().parked == 3
    driver.scheduler.grant(1, 100)
    driver.step()
    second = tables(driver)
    assert second[1][-1] == first[1][-1]
    assert second[2][-1] == tail
    assert driver.plan.copies.on_write.tolist() == [[tail, second[3][-1]]]
    assert_the_pool_is_as_at_the_start(driver)
    assert driver.tokens == {choice: oracle(prompt_of(6), 4, choice - 1) for choice in (1, 2, 3)}


def test_choices_without_memory_for_their_copies_take_turns():
    """Alone on the engine they were admitted without promises; the newest has to wait."""
    driver = Driver(num_blocks=3, max_model_len=12)
    driver.add(1, prompt_of(6), max_tokens=6, n=3)

    driver.step()
    driver.step()

    assert driver.plan is not None
    assert driver.plan.requests.tolist() == [1, 2]
    assert driver.preempted == [3]
    assert_the_pool_is_as_at_the_start(driver)
    assert driver.tokens == {choice: oracle(prompt_of(6), 6, choice - 1) for choice in (1, 2, 3)}


def stores(**limits: int) -> Stores:
    config = SchedulerConfig(
        **{
            "num_blocks": 16,
            "block_size": SIZE,
            "max_model_len": 32,
            "max_num_seqs": 8,
            "max_num_batched_tokens": 32,
            **limits,
        }
    )
    return Stores(config, Decisions(Profile()), CostModel())


def seat(stores: Stores, request: int, length: int, *, computed: int, n: int = 1) -> int:
    arrival = Arrival(
        request=request, prompt=np.array(prompt_of(length), dtype=np.int32), max_tokens=8, n=n
    )
    row = stores.table.add(arrival, 0.0)
    blocks = stores.pool.allocate(-(-length // SIZE))
    stores.table.take_seats(stores.table.cold(row))
    stores.table.seat_rows(np.array([row]), [blocks], np.array([computed]))
    return row


@pytest.mark.parametrize("length", [3, 4, 5, 8])
def test_a_row_holds_the_blocks_of_all_its_known_tokens(length: int):
    state = stores()
    row = seat(state, 1, length, computed=length - 1)

    assert growth_of(state, np.array([row])).tolist() == [0]


def test_a_token_over_the_edge_needs_a_block():
    state = stores()
    rows = np.array([seat(state, 1, 4, computed=3), seat(state, 2, 3, computed=2)])
    state.table.append_tokens(rows, np.array([7, 7], dtype=np.int32))

    assert growth_of(state, rows).tolist() == [1, 0]


def test_what_is_spare_leaves_room_for_growth_and_for_promised_tails():
    state = stores()
    decoding = seat(state, 1, 4, computed=4 - 1)
    state.table.append_tokens(np.array([decoding]), np.array([7], dtype=np.int32))
    group = seat(state, 2, 6, computed=0, n=3)
    state.table.promised_blocks[group] = 2

    budget = measure(state)

    assert sorted(budget.running.tolist()) == sorted([decoding, group])
    assert budget.growth.sum() == 1
    assert budget.promised == 2
    assert budget.spare == 16 - 1 - 2 - 1 - 2


def test_a_parked_row_does_not_grow_but_keeps_its_promise():
    state = stores()
    group = seat(state, 2, 6, computed=0, n=3)
    state.table.promised_blocks[group] = 2
    state.table.parked[group] = True
    state.table.num_parked = 1

    budget = measure(state)

    assert len(budget.running) == 0
    assert (budget.promised, budget.spare) == (2, 16 - 2 - 2)
