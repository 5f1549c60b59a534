"""Readers with credit: nobody gets a token more, and who waits for credit gives way to others."""

import numpy as np
import pytest

from cadenza.policies.profile import Profile
from cadenza.scheduler.decisions import Admitted, Cause, Parked, Preempted, Unparked
from cadenza.scheduler.request import Refused
from cadenza.scheduler.states import FinishReason
from cadenza.testing import Driver, oracle

GREEDY = {"reserve_blocks": "none"}


def drain(driver: Driver, most: int = 100) -> None:
    """Step while a step would do something, as the engine's loop does."""
    for _ in range(most):
        if not driver.scheduler.has_work:
            return
        driver.step()
    raise AssertionError("there is always something left to do")


def kinds(driver: Driver, request: int) -> list[str]:
    return [type(each).__name__ for each in driver.scheduler.timeline(request)]


@pytest.mark.parametrize("credit", [1, 2, 3, 9, 10, 11])
def test_a_reader_gets_exactly_the_tokens_it_takes(credit: int):
    driver = Driver()
    driver.add(1, [5, 6], max_tokens=10, credit=credit)

    drain(driver)

    assert driver.tokens[1] == oracle([5, 6], min(credit, 10))
    assert driver.scheduler.has_unfinished is (credit < 10)
    assert driver.scheduler.statistics().parked == (credit < 10)


@pytest.mark.parametrize("grants", [[1] * 8, [3, 5], [8], [2, 0, 6], [5, -2, 5]])
def test_grants_add_up_however_they_come(grants: list[int]):
    driver = Driver()
    driver.add(1, [5, 6], max_tokens=10, credit=2)
    drain(driver)
    total = 2
    for grant in grants:
        driver.scheduler.grant(1, grant)
        total += grant
        if grant > 0:
            drain(driver)
            assert len(driver.tokens[1]) >= total

    assert driver.tokens[1] == oracle([5, 6], 10)
    assert driver.ends == {1: FinishReason.LENGTH}


def test_a_grant_that_comes_in_time_parks_nobody():
    driver = Driver()
    driver.add(1, [5, 6], max_tokens=10, credit=2)
    for _ in range(9):
        driver.step()
        driver.scheduler.grant(1, 1)
    driver.run()

    assert driver.tokens[1] == oracle([5, 6], 10)
    assert kinds(driver, 1) == ["Arrived", "Admitted", "Finished"]


def test_nothing_is_left_to_do_when_all_wait_for_credit():
    driver = Driver()
    driver.add(1, [5, 6], max_tokens=10, credit=1)
    driver.add(2, [7], max_tokens=10, credit=0)
    driver.add(3, [8], max_tokens=2)
    drain(driver)
    assert driver.ends == {3: FinishReason.LENGTH}
    assert driver.scheduler.has_unfinished
    before = driver.scheduler.statistics()

    assert driver.step().requests.tolist() == []
    assert driver.plan is None
    assert driver.scheduler.statistics().computed_tokens == before.computed_tokens

    driver.scheduler.grant(2, 1)
    assert driver.scheduler.has_work
    driver.scheduler.drop(1)
    drain(driver)
    assert driver.tokens[2] == oracle([7], 1)


def test_a_cancel_of_a_parked_request_is_work():
    driver = Driver()
    driver.add(1, [5, 6], credit=1)
    drain(driver)

    driver.scheduler.drop(1)

    assert driver.scheduler.has_work
    driver.run()
    assert driver.scheduler.statistics().parked == 0


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("credit", [3, 4, 5, 6, 7, 20])
def test_choices_of_one_stream_draw_on_one_credit(n: int, credit: int):
    """All of them run together; what does not suffice for all goes to the oldest."""
    driver = Driver()
    driver.add(1, [5, 6, 7], max_tokens=6, n=n, credit=credit)

    drain(driver)

    each, rest = divmod(min(credit, 6 * n), n)
    assert driver.tokens == {
        1 + choice: oracle([5, 6, 7], each + (choice < rest), choice) for choice in range(n)
    }
    statistics = driver.scheduler.statistics()
    assert statistics.parked == (n if credit < 6 * n else 0)
    driver.scheduler.grant(2, 100)
    driver.run()
    assert driver.tokens == {1 + choice: oracle([5, 6, 7], 6, choice) for choice in range(n)}


def test_one_stream_parks_all_its_choices_in_one_step_and_keeps_seats_and_blocks():
    driver = Driver()
    driver.add(1, [5, 6, 7], max_tokens=8, n=3, credit=6)
    drain(driver)

    parked = [record for record in driver.decided if isinstance(record, Parked)]
    assert [record.request for record in parked] == [1, 2, 3]
    assert len({record.step_id for record in parked}) == 1
    statistics = driver.scheduler.statistics()
    assert (statistics.parked, statistics.running, statistics.waiting) == (3, 3, 0)
    assert statistics.total_blocks - statistics.free_blocks - statistics.cached_blocks == 3

    driver.scheduler.grant(1, 3)
    driver.step()
    unparked = [record for record in driver.decided if isinstance(record, Unparked)]
    assert [record.request for record in unparked] == [1, 2, 3]
    assert driver.plan is not None
    assert driver.plan.seated == ()
    assert driver.plan.num_new.tolist() == [1, 1, 1]
    driver.scheduler.grant(1, 100)
    driver.run()
    assert driver.preempted == []


def test_a_first_credit_must_give_each_choice_a_token():
    driver = Driver()

    with pytest.raises(Refused, match="a credit of 2 does not give each of 3 choices a token"):
        driver.add(1, [5], n=3, credit=2)
    with pytest.raises(Refused, match="a credit of -1"):
        driver.add(1, [5], credit=-1)

    driver.add(1, [5], n=3, credit=3)
    drain(driver)
    assert driver.tokens == {1 + choice: oracle([5], 1, choice) for choice in range(3)}


def test_a_choice_that_ends_leaves_its_share_to_the_others():
    driver = Driver()
    driver.add(1, [5, 6], max_tokens=8, n=2, credit=10)
    driver.step()
    driver.step()
    driver.scheduler.drop(1)

    drain(driver)

    got = len(driver.tokens[1])
    assert driver.tokens[2] == oracle([5, 6], min(8, 10 - got), 1)


def test_streams_do_not_share():
    driver = Driver()
    for request, credit in ((1, 2), (2, 5), (3, None)):
        driver.add(request, [request], max_tokens=8, credit=credit)

    drain(driver)

    assert {request: len(tokens) for request, tokens in driver.tokens.items()} == {1: 2, 2: 5, 3: 8}


def test_a_long_prompt_draws_on_credit_only_when_it_is_complete():
    driver = Driver(max_num_seqs=4, max_num_batched_tokens=8)
    driver.add(1, list(range(1, 40)), credit=1)

    drain(driver)

    assert driver.tokens[1] == oracle(list(range(1, 40)), 1)


def parked_beside(driver: Driver, prompt: list[int], **fields: object) -> None:
    """Request 1 has one token and no credit for more."""
    driver.add(1, prompt, credit=1, **fields)
    drain(driver)
    assert driver.scheduler.statistics().parked == 1


def test_a_parked_row_keeps_its_seat_until_somebody_wants_it():
    driver = Driver(max_num_seqs=2)
    parked_beside(driver, [5, 6])
    driver.add(2, [7], max_tokens=6)
    for _ in range(3):
        driver.step()
    assert driver.preempted == []

    driver.add(3, [8], max_tokens=2)
    report = driver.step()

    assert report.preempted.tolist() == [1]
    assert report.admitted.tolist() == [3]
    assert driver.plan is not None
    assert driver.plan.requests.tolist() == [2, 3]
    record = driver.scheduler.timeline(1)[-1]
    assert isinstance(record, Preempted)
    assert record.cause is Cause.ROOM
    drain(driver)
    assert driver.admitted == [1, 2, 3], "it does not come back without credit"
    driver.scheduler.grant(1, 100)
    driver.run()
    assert driver.tokens[1] == oracle([5, 6], 4)


@pytest.mark.parametrize(("blocks", "gives_way"), [(3, False), (4, True)])
def test_a_parked_row_keeps_its_blocks_until_somebody_lacks_them(blocks: int, gives_way: bool):
    """8 blocks: four are parked, one runs, and a newcomer takes what is left or one more."""
    driver = Driver(Profile(GREEDY), num_blocks=8, max_model_len=32)
    parked_beside(driver, [5] * 14)
    driver.add(2, [7], max_tokens=3)
    driver.step()
    driver.add(3, [8] * 4 * blocks, max_tokens=1)

    report = driver.step()

    assert report.admitted.tolist() == [3]
    assert report.preempted.tolist() == [1] * gives_way


def test_a_parked_row_gives_way_to_growth_before_anybody_who_runs():
    """It came first, and is the oldest by arrival and admission."""
    driver = Driver(Profile(GREEDY), num_blocks=5, max_model_len=20)
    parked_beside(driver, [5] * 7)
    driver.add(2, [7] * 8, max_tokens=5)
    driver.add(3, [8] * 3, max_tokens=3)

    drain(driver)

    assert driver.preempted == [1]
    record = driver.scheduler.timeline(1)[-1]
    assert isinstance(record, Preempted)
    assert record.cause is Cause.ROOM
    assert driver.tokens == {
        1: oracle([5] * 7, 1),
        2: oracle([7] * 8, 5),
        3: oracle([8] * 3, 3),
    }


def test_just_enough_parked_rows_give_way():
    driver = Driver(max_num_seqs=4)
    for request in (1, 2, 3):
        driver.add(request, [request], credit=1)
    drain(driver)
    driver.add(4, [4] * 3, n=2, max_tokens=2)

    report = driver.step()

    assert report.admitted.tolist() == [4, 5]
    assert report.preempted.tolist() == [3], "the newest; one seat was free"


def test_parked_rows_stay_where_all_of_them_together_would_not_make_room():
    driver = Driver(max_num_seqs=3)
    driver.add(1, [1], max_tokens=20)
    driver.add(2, [2], credit=1)
    for _ in range(3):
        driver.step()
    driver.add(3, [3] * 3, n=3)

    for _ in range(3):
        driver.step()

    assert driver.preempted == []
    assert driver.scheduler.statistics().parked == 1


def test_a_parked_row_is_swapped_like_any_other_victim():
    chosen = {"choose_preemption": "swap"}
    driver = Driver(Profile(chosen), max_num_seqs=1, num_host_blocks=4)
    parked_beside(driver, [5] * 6)
    driver.add(2, [7], max_tokens=2)
    drain(driver)
    assert driver.scheduler.statistics().swapped == 1
    driver.scheduler.reset_prefix_cache()

    driver.scheduler.grant(1, 9)
    driver.step()

    assert driver.plan is not None
    assert len(driver.plan.copies.swap_in) == 2
    assert driver.plan.num_context.tolist() == [6]
    driver.run()
    assert driver.tokens[1] == oracle([5] * 6, 4)
    assert driver.scheduler.statistics().recomputed_tokens == 0


@pytest.mark.parametrize("leave", ["drop", "finish"])
def test_a_parked_row_can_be_ended(leave: str):
    driver = Driver()
    parked_beside(driver, [5] * 6)

    getattr(driver.scheduler, leave)(1)
    driver.run()

    statistics = driver.scheduler.statistics()
    assert (statistics.parked, statistics.running) == (0, 0)
    driver.add(2, [6], credit=3)
    drain(driver)
    assert driver.tokens[2] == oracle([6], 3), "its slot serves the next reader"


@pytest.mark.parametrize("length", [29, 32])
def test_a_prompt_of_several_choices_parks_too_when_credit_is_taken_back(length: int):
    prompt = list(range(1, length + 1))
    driver = Driver(max_num_seqs=4, max_num_batched_tokens=8)
    driver.add(1, prompt, n=3, credit=3)
    driver.step()
    driver.scheduler.grant(1, -1)
    drain(driver)
    assert kinds(driver, 3) == ["Arrived", "Admitted", "Parked"]
    assert driver.tokens == {}

    driver.scheduler.grant(2, 10)
    driver.run()

    assert driver.tokens == {1 + choice: oracle(prompt, 4, choice) for choice in range(3)}


@pytest.mark.parametrize("length", [13, 16])
def test_a_parked_prompt_of_several_choices_gives_only_the_blocks_it_has(length: int):
    """What it is promised is not there to be given while nothing runs."""
    driver = Driver(
        Profile(GREEDY), num_blocks=8, max_model_len=32, max_num_seqs=4, max_num_batched_tokens=8
    )
    driver.add(1, [1] * 9, credit=1, max_tokens=2)
    drain(driver)
    driver.add(2, list(range(1, length + 1)), n=2, credit=2)
    driver.step()
    driver.scheduler.grant(2, -1)
    drain(driver)
    assert kinds(driver, 1)[-1] == kinds(driver, 2)[-1] == kinds(driver, 3)[-1] == "Parked"
    driver.add(9, [9] * 24, max_tokens=1)

    drain(driver)

    assert driver.tokens[9] == oracle([9] * 24, 1)
    driver.scheduler.grant(1, 100)
    driver.scheduler.grant(2, 100)
    driver.run()
    assert driver.tokens[3] == oracle(list(range(1, length + 1)), 4, 1)


def test_parking_ends_the_pin_of_a_starving_row():
    """A displacer of the same step finds it parked first, and a pin would not hold it."""
    driver = Driver()
    driver.add(1, [5], credit=1)
    driver.step()
    stores = driver.scheduler._stores
    row = stores.table.row_of(1)
    assert row is not None
    stores.table.pinned_until[row] = 16

    driver.step()

    assert stores.table.parked[row]
    assert stores.table.pinned_until[row] == 0


def test_parking_and_its_end_are_logged_once_each():
    driver = Driver()
    driver.add(1, [5, 6], max_tokens=6, credit=2)
    drain(driver)
    for _ in range(3):
        driver.step()
    driver.scheduler.grant(1, 2)
    drain(driver)
    driver.scheduler.grant(1, 9)
    driver.run()

    assert kinds(driver, 1) == [
        "Arrived",
        "Admitted",
        "Parked",
        "Unparked",
        "Parked",
        "Unparked",
        "Finished",
    ]
    assert isinstance(driver.scheduler.timeline(1)[1], Admitted)


def test_a_row_that_waits_again_without_credit_is_admitted_with_the_first_token_granted():
    driver = Driver(max_num_seqs=1)
    parked_beside(driver, [5, 6])
    driver.add(2, [7], max_tokens=1)
    drain(driver)
    assert driver.preempted == [1]
    assert np.isin(driver.scheduler.statistics().waiting, [1])

    driver.scheduler.grant(1, 1)
    drain(driver)

    assert driver.tokens[1] == oracle([5, 6], 2)
    assert driver.scheduler.statistics().parked == 1


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("before", range(6))
def test_who_stalls_gives_way_at_once_and_goes_on_where_it_was(n: int, before: int):
    driver = Driver()
    requests = range(1, 1 + n)
    driver.runner.choice_of = {request: request - 1 for request in requests}
    driver.add(1, [5, 6], max_tokens=10, n=n)
    for _ in range(before):
        driver.step()
    stalled_at = {request: len(driver.tokens.get(request, ())) for request in requests}
    for request in requests:
        driver.scheduler.stall(request, is_stalled=True)
        driver.scheduler.stall(request, is_stalled=True)

    drain(driver)

    for request in requests:  # what was being computed comes all the same
        assert len(driver.tokens.get(request, ())) - stalled_at[request] in (0, 1)
    for request in requests:
        driver.scheduler.stall(request, is_stalled=False)
    drain(driver)
    assert driver.tokens == {request: oracle([5, 6], 10, request - 1) for request in requests}
    assert driver.scheduler.statistics().parked == 0


def test_who_has_credit_stalls_by_that_alone():
    driver = Driver()
    driver.add(1, [5, 6], max_tokens=10, credit=4)
    driver.step()
    driver.scheduler.stall(1, is_stalled=True)
    driver.scheduler.stall(7, is_stalled=True)  # nobody's
    drain(driver)
    driver.scheduler.stall(1, is_stalled=False)
    drain(driver)

    assert driver.tokens[1] == oracle([5, 6], 4)
