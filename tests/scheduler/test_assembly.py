"""The plan: every array of a step that decodes, prefills, and samples for several choices."""

import numpy as np
import pytest

from cadenza.policies.profile import Profile
from cadenza.testing import Driver, oracle

SIZE = 4


def mixed() -> Driver:
    """Request 1 decodes at position 5, 2 is in mid-prefill, 3 to 5 share a short prompt."""
    driver = Driver(max_num_batched_tokens=16, max_num_seqs=6)
    driver.add(1, [11, 12, 13, 14], max_tokens=9)
    driver.step()
    driver.step()
    driver.add(2, list(range(100, 140)), max_tokens=2)
    driver.add(3, [31, 32, 33], n=3, max_tokens=2)
    driver.step()
    return driver


def test_decodes_come_first_and_each_row_has_its_tokens_at_its_positions():
    driver = mixed()
    plan = driver.plan

    assert plan is not None
    assert plan.step_id == 3
    assert plan.requests.tolist() == [1, 2, 3]
    assert plan.num_context.tolist() == [5, 0, 0]
    assert plan.num_new.tolist() == [1, 12, 3]
    assert (plan.num_rows, plan.num_tokens) == (3, 16)
    newest = driver.tokens[1][-1]
    assert plan.layout().tokens.tolist() == [newest, *range(100, 112), 31, 32, 33]


def test_the_layout_says_where_each_new_token_goes():
    plan = mixed().plan

    assert plan is not None
    _, positions, blocks, offsets, tables = plan.layout()
    assert tables.shape == (3, 3), "as wide as the widest row of this step"
    assert positions.tolist() == [5, *range(12), 0, 1, 2]
    rows = [0] + [1] * 12 + [2] * 3
    places = zip(rows, positions.tolist(), strict=True)
    assert blocks.tolist() == [tables[row, place // SIZE] for row, place in places]
    assert offsets.tolist() == [place % SIZE for place in positions.tolist()]
    assert len(set(zip(blocks.tolist(), offsets.tolist(), strict=True))) == 16


def test_samples_are_of_rows_that_are_complete_and_of_each_choice():
    plan = mixed().plan

    assert plan is not None
    assert plan.samples.tolist() == [0, 2, 2, 2], "the prefill goes on and draws nothing"
    assert plan.sample_requests.tolist() == [1, 3, 4, 5]
    seats = plan.sample_seats.tolist()
    assert len(set(seats)) == 4
    assert [seats[0], seats[1]] == [plan.seats[0], plan.seats[2]]


@pytest.mark.parametrize(("length", "chunks"), [(11, [11]), (12, [11, 1]), (13, [11, 2])])
def test_a_row_draws_when_the_very_last_token_of_its_prompt_is_computed(
    length: int, chunks: list[int]
):
    driver = Driver(max_num_batched_tokens=11, max_num_seqs=2)
    driver.add(1, list(range(1, 1 + length)), max_tokens=1)
    computed, drawn = [], []
    while not driver.ends:
        driver.step()
        if driver.plan is not None:
            computed += driver.plan.num_new.tolist()
            drawn.append(driver.plan.samples.tolist())

    assert computed == chunks
    assert drawn == [[]] * (len(chunks) - 1) + [[0]]
    assert driver.tokens[1] == oracle(list(range(1, 1 + length)), 1)


def test_seats_are_announced_once_with_all_that_is_known():
    driver = mixed()
    assert driver.plan is not None
    seated = {each.request: each for each in driver.plan.seated}
    assert list(seated) == [2, 3, 4, 5]
    assert seated[2].tokens.tolist() == list(range(100, 140))
    assert [seated[choice].tokens.tolist() for choice in (3, 4, 5)] == [[31, 32, 33]] * 3
    assert [seated[choice].seat for choice in (3, 4, 5)] == driver.plan.sample_seats.tolist()[1:]

    driver.step()

    assert driver.plan.seated == ()
    driver.run()
    for choice in range(3):
        assert driver.tokens[3 + choice] == oracle([31, 32, 33], 2, choice)


def test_a_resumed_row_is_seated_with_its_output_and_the_length_of_its_prompt():
    driver = Driver()
    driver.add(1, [11, 12], max_tokens=9)
    for _ in range(3):
        driver.step()
    driver.scheduler.preempt(1, swap=False)

    driver.step()

    assert driver.plan is not None
    (seated,) = driver.plan.seated
    assert seated.tokens.tolist() == [11, 12, *oracle([11, 12], 3)]
    assert seated.prompt_tokens == 2


def test_emitted_tokens_are_output_to_the_runner():
    driver = Driver()
    driver.add(1, [11, 12], emitted=np.array([7, 8], dtype=np.int32), max_tokens=9)
    driver.step()

    assert driver.plan is not None
    (seated,) = driver.plan.seated
    assert (seated.tokens.tolist(), seated.prompt_tokens) == ([11, 12, 7, 8], 2)


def test_a_step_of_decodes_alone_has_one_token_a_row():
    driver = Driver()
    for request in (1, 2, 3):
        driver.add(request, [request] * (request + 2), max_tokens=9)
    driver.step()
    driver.step()
    plan = driver.plan

    assert plan is not None
    assert plan.num_new.tolist() == [1, 1, 1]
    assert plan.layout().positions.tolist() == plan.num_context.tolist() == [3, 4, 5]
    assert plan.layout().tokens.tolist() == [driver.tokens[request][-1] for request in (1, 2, 3)]
    assert plan.samples.tolist() == [0, 1, 2]
    assert plan.sample_seats.tolist() == plan.seats.tolist()


def test_a_plan_has_the_types_that_runners_rely_on():
    plan = mixed().plan

    assert plan is not None
    for name in ("seats", "num_context", "num_new", "samples", "sample_seats"):
        assert getattr(plan, name).dtype == np.int32, name
    for name in ("requests", "sample_requests"):
        assert getattr(plan, name).dtype == np.int64, name
    assert all(each.dtype == np.int32 for each in plan.layout())
    for copies in plan.copies:
        assert (copies.dtype, copies.shape) == (np.int32, (0, 2))


def test_nothing_to_compute_is_no_plan():
    driver = Driver()
    driver.step()
    assert driver.plan is None

    driver.add(1, [1], credit=0)
    driver.step()
    assert driver.plan is None


def test_a_plan_may_consist_of_copies_alone():
    """The only row is swapped out for want of credit to come back at once."""
    driver = Driver(Profile({"choose_preemption": "swap"}), num_host_blocks=4)
    driver.add(1, [1] * 6, max_tokens=9, credit=2)
    driver.step()
    driver.step()
    driver.scheduler.preempt(1, swap=True)

    driver.step()

    assert driver.plan is not None
    assert (driver.plan.num_rows, driver.plan.num_tokens) == (0, 0)
    assert driver.plan.layout().block_tables.shape == (0, 0)
    assert len(driver.plan.copies.swap_out) == 2
    assert driver.scheduler.has_work, "its outcome is still to be reaped"
    driver.scheduler.grant(1, 99)
    driver.run()
    assert driver.tokens[1] == oracle([1] * 6, 9)
