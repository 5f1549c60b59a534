"""A waiting request takes the place of running ones, where a policy lets it, and only as needed."""

from collections import Counter

import numpy as np
import pytest

from cadenza.policies import RequestColumns, StepView, hookimpl
from cadenza.policies.builtin import BUILTIN
from cadenza.policies.profile import Profile
from cadenza.scheduler.decisions import Admitted, Cause, Displaced, Preempted
from cadenza.testing import Driver, oracle

STRICT = {
    "order_admissions": "priority",
    "select_victims": "lowest-priority",
    "allow_displacement": "strict-priority",
    "reserve_blocks": "none",
}


def strict(chosen: dict[str, str] | None = None, **limits: object) -> Driver:
    policies = {**BUILTIN, "everybody": Everybody, "counting": Counting}
    return Driver(Profile({**STRICT, **(chosen or {})}, policies), **limits)


def of_priority(driver: Driver, *priorities: int, length: int = 3, **fields: object) -> None:
    """Requests 1, 2, ... with these priorities, running."""
    for request, priority in enumerate(priorities, start=1):
        driver.add(request, [request] * length, priority=priority, **{"max_tokens": 12, **fields})
    driver.step()
    assert sorted(driver.admitted) == list(range(1, 1 + len(priorities)))


def plan_of(driver: Driver) -> dict[int, int]:
    """Planned requests and the tokens that each computes."""
    assert driver.plan is not None
    return dict(zip(driver.plan.requests.tolist(), driver.plan.num_new.tolist(), strict=True))


class Everybody:
    """Lets anybody displace anybody, whatever that leads to."""

    @hookimpl
    def allow_displacement(
        self, candidate: RequestColumns, running: RequestColumns, step: StepView
    ) -> np.ndarray:
        return np.full(len(running), np.inf)


class Counting:
    """Strict priority that counts its questions, and remembers who was asked about."""

    def __init__(self) -> None:
        type(self).asked = Counter()
        type(self).about = []

    @hookimpl
    def allow_displacement(
        self, candidate: RequestColumns, running: RequestColumns, step: StepView
    ) -> np.ndarray:
        assert len(candidate) == 1
        self.asked[step.step_id] += 1
        self.about.append((int(candidate.request[0]), running.request.tolist()))
        return running.priority.astype(float) - float(candidate.priority[0])


def test_a_better_request_takes_a_seat_in_the_same_step():
    driver = strict(max_num_seqs=2)
    of_priority(driver, 5, 5)
    driver.add(9, [9] * 6, priority=1, max_tokens=3)

    report = driver.step()

    assert report.preempted.tolist() == [2], "of two equals the newest"
    assert report.admitted.tolist() == [9]
    assert plan_of(driver) == {1: 1, 9: 6}
    assert driver.plan is not None
    assert driver.plan.sample_requests.tolist() == [1, 9]
    records = [each for each in report.decisions if each.step_id == 2]
    assert [type(each) for each in records] == [Displaced, Preempted, Admitted]
    displaced, preempted, admitted = records
    assert isinstance(displaced, Displaced)
    assert (displaced.request, displaced.by) == (2, 9)
    assert isinstance(preempted, Preempted)
    assert (preempted.request, preempted.cause) == (2, Cause.DISPLACED)
    assert admitted.request == 9
    driver.run()
    assert driver.admitted == [1, 2, 9, 2], "it comes back when the other has ended"
    for request in (1, 2):
        assert driver.tokens[request] == oracle([request] * 3, 12)


def test_a_better_request_takes_blocks_in_the_same_step():
    """Two blocks are lacking: the worst one has them, and the others are left alone."""
    driver = strict(num_blocks=8, max_model_len=32)
    of_priority(driver, 5, 7, 6, length=7)
    driver.add(9, [9] * 13, priority=1, max_tokens=3)

    report = driver.step()

    assert report.preempted.tolist() == [2]
    assert plan_of(driver) == {1: 1, 3: 1, 9: 13}
    driver.run()
    for request in (1, 2, 3):
        assert driver.tokens[request] == oracle([request] * 7, 12)


@pytest.mark.parametrize("bottleneck", ["seats", "blocks"])
@pytest.mark.parametrize("priority", [5, 6])
def test_equals_and_worse_ones_displace_nobody(bottleneck: str, priority: int):
    limits = (
        {"max_num_seqs": 2} if bottleneck == "seats" else {"num_blocks": 4, "max_model_len": 16}
    )
    driver = strict(**limits)
    of_priority(driver, 5, 5, length=5, max_tokens=3)
    driver.add(9, [9] * 6, priority=priority, max_tokens=3)

    driver.run()

    assert driver.preempted == []
    assert driver.admitted == [1, 2, 9]


def test_just_enough_are_displaced_judged_as_a_set():
    """Three blocks are lacking: neither of the worst alone suffices, both do."""
    driver = strict(num_blocks=9, max_model_len=36)
    of_priority(driver, 5, 8, 7, 6, length=5, max_tokens=3)
    driver.add(9, [9] * 15, priority=1, max_tokens=1)

    report = driver.step()

    assert report.preempted.tolist() == [2, 3]
    assert plan_of(driver) == {1: 1, 4: 1, 9: 15}


def test_who_turns_out_not_to_be_needed_is_spared():
    """The worst has one block, the next has three: those alone are enough."""
    driver = strict(num_blocks=6, max_model_len=24)
    driver.add(1, [1], priority=9, max_tokens=3)
    driver.add(2, [2] * 10, priority=8, max_tokens=2)
    driver.step()
    driver.add(9, [9] * 17, priority=1, max_tokens=1)

    report = driver.step()

    assert report.preempted.tolist() == [2]
    assert plan_of(driver) == {1: 1, 9: 17}


def test_nobody_is_displaced_if_all_who_may_be_do_not_suffice():
    """Request 1 is as good as the candidate, so its blocks are not to be had."""
    driver = strict(num_blocks=8, max_model_len=32)
    of_priority(driver, 1, 5, 5, length=7, max_tokens=2)
    driver.add(9, [9] * 25, priority=1, max_tokens=1)

    report = driver.step()

    assert report.preempted.tolist() == []
    assert report.admitted.tolist() == []
    driver.run()
    assert driver.preempted == []
    assert driver.tokens[9] == oracle([9] * 25, 1)


def test_seats_for_all_choices_are_taken_or_none():
    driver = strict(max_num_seqs=4)
    of_priority(driver, 5, 6, 7, 8, max_tokens=9)
    driver.add(10, [9] * 3, n=3, priority=1, max_tokens=2)

    report = driver.step()

    assert report.preempted.tolist() == [4, 3, 2]
    assert report.admitted.tolist() == [10, 11, 12]
    driver.add(20, [8] * 3, n=2, priority=0, max_tokens=2)
    driver.add(30, [7] * 3, n=4, priority=1, max_tokens=2)
    driver.run()
    for choice in range(3):
        assert driver.tokens[10 + choice] == oracle([9] * 3, 2, choice)
    for request in range(1, 5):
        assert driver.tokens[request] == oracle([request] * 3, 9)


def test_a_prompt_of_several_choices_leaves_as_one():
    driver = strict(max_num_seqs=4, max_num_batched_tokens=8)
    driver.add(1, list(range(1, 31)), n=3, priority=5)
    driver.step()
    driver.add(9, [9], priority=1, max_tokens=2)
    driver.add(10, [10], priority=1, max_tokens=2)

    report = driver.step()

    assert report.preempted.tolist() == [1, 2, 3]
    displaced = [each for each in driver.decided if isinstance(each, Displaced)]
    assert [(each.request, each.by) for each in displaced] == [(1, 10), (2, 10), (3, 10)]
    driver.run()
    for choice in range(3):
        assert driver.tokens[1 + choice] == oracle(list(range(1, 31)), 4, choice)


def test_the_token_of_a_displaced_decode_is_given_back():
    """Twelve tokens a step: a decode beside the candidate, and nothing for who has left."""
    driver = strict(max_num_seqs=2, max_num_batched_tokens=12)
    of_priority(driver, 2, 5)
    driver.add(9, [9] * 40, priority=1)

    driver.step()

    assert plan_of(driver) == {1: 1, 9: 11}


def test_the_tokens_of_a_displaced_prefill_go_to_those_who_stay():
    driver = strict(max_num_seqs=2, max_num_batched_tokens=24)
    of_priority(driver, 2, 5, length=36, max_tokens=2)
    assert plan_of(driver) == {1: 24}
    driver.add(9, [9] * 40, priority=1, max_tokens=2)

    driver.step()

    assert plan_of(driver) == {1: 12, 9: 12}
    driver.run()
    for request in (1, 2):
        assert driver.tokens[request] == oracle([request] * 36, 2)


def test_a_row_displaced_by_swap_comes_back_without_computing_anything_twice():
    driver = strict({"choose_preemption": "swap"}, max_num_seqs=1, num_host_blocks=4)
    of_priority(driver, 5, length=6)
    driver.add(9, [9] * 3, priority=1, max_tokens=2)
    driver.step()
    assert driver.plan is not None
    assert len(driver.plan.copies.swap_out) == 2
    assert driver.scheduler.statistics().swaps == 1
    driver.scheduler.reset_prefix_cache()

    driver.run()

    assert driver.tokens[1] == oracle([1] * 6, 12)
    assert driver.scheduler.statistics().recomputed_tokens == 0


def test_a_row_that_grew_in_this_step_may_still_be_displaced():
    """It has just been given the block for its next token, which goes with it."""
    driver = strict(num_blocks=6, max_model_len=24)
    of_priority(driver, 5, 6, length=8, max_tokens=4)
    assert driver.scheduler.statistics().free_blocks == 2
    driver.add(9, [9] * 12, priority=1, max_tokens=1)

    report = driver.step()

    assert report.preempted.tolist() == [2]
    assert plan_of(driver) == {1: 1, 9: 12}
    driver.run()
    assert driver.tokens[2] == oracle([2] * 8, 4)


def test_a_choice_that_copied_its_tail_in_this_step_is_left_alone():
    """The copy is in the plan already; the oldest, which writes in place, may go."""
    for seats in (2, 3):
        driver = strict(max_num_seqs=seats)
        driver.add(1, [1] * 6, n=seats, priority=5, max_tokens=9)
        driver.step()
        driver.add(9, [9], priority=1, max_tokens=2)

        report = driver.step()

        assert report.preempted.tolist() == [1]
        assert driver.plan is not None
        assert len(driver.plan.copies.on_write) == seats - 1
        driver.run()
        for choice in range(seats):
            assert driver.tokens[1 + choice] == oracle([1] * 6, 9, choice)


def test_a_row_that_entered_in_this_step_is_not_displaced_in_it():
    """Request 9 takes the last seat, and 8 may not take it away at once."""

    class Backwards:
        @hookimpl
        def order_admissions(self, waiting: RequestColumns, step: StepView) -> np.ndarray:
            return -waiting.priority.astype(float)

    profile = Profile(
        {**STRICT, "order_admissions": "backwards"}, {**BUILTIN, "backwards": Backwards}
    )
    driver = Driver(profile, max_num_seqs=1)
    driver.add(9, [9], priority=5, max_tokens=2)
    driver.add(8, [8], priority=1, max_tokens=2)

    assert driver.step().admitted.tolist() == [9]
    assert driver.step().admitted.tolist() == [8]
    assert driver.preempted == [9]


@pytest.mark.parametrize(("cap", "displaced"), [(0, []), (1, [1]), (2, [1, 1])])
def test_a_row_is_displaced_no_more_often_than_the_cap(cap: int, displaced: list[int]):
    driver = strict(max_num_seqs=1, max_preemptions=cap)
    of_priority(driver, 5, max_tokens=30)
    for request in (10, 11):
        driver.add(request, [request], priority=1, max_tokens=1)
        for _ in range(4):
            driver.step()

    driver.run()

    assert driver.preempted == displaced
    assert driver.tokens[1] == oracle([1] * 3, 30)


def test_the_policy_is_asked_once_a_step_and_only_about_who_may_leave():
    driver = strict({"allow_displacement": "counting"}, max_num_seqs=3, max_preemptions=1)
    of_priority(driver, 5, 5, 5, max_tokens=9)
    driver.scheduler.preempt(2, swap=False)
    driver.step()
    stores = driver.scheduler._stores
    row = stores.table.row_of(3)
    assert row is not None
    stores.table.pinned_until[row] = 16
    for request in (7, 8, 9):
        driver.add(request, [request], priority=1, max_tokens=3)

    driver.step()

    assert Counting.about == [(7, [1])]
    assert driver.preempted == [2, 1]
    driver.run()
    assert set(Counting.asked.values()) == {1}
    assert driver.decisions.faults == 0


def test_nobody_is_asked_while_there_is_room():
    driver = strict({"allow_displacement": "counting"})
    of_priority(driver, 5, 5)
    driver.add(9, [9], priority=1)
    driver.run()

    assert Counting.about == []


def test_the_default_displaces_nobody():
    driver = strict({"allow_displacement": "nobody"}, max_num_seqs=1)
    of_priority(driver, 5)
    driver.add(9, [9], priority=0)

    driver.run()

    assert driver.preempted == []
    assert driver.admitted == [1, 9]


def test_parked_rows_give_way_before_anybody_is_displaced():
    driver = strict(max_num_seqs=2)
    of_priority(driver, 9, max_tokens=30)
    driver.add(2, [2], priority=0, credit=1)
    for _ in range(3):
        driver.step()
    assert driver.scheduler.statistics().parked == 1
    driver.add(9, [9], priority=1, max_tokens=2)

    report = driver.step()

    assert report.preempted.tolist() == [2]
    assert not any(isinstance(each, Displaced) for each in driver.decided)


def test_parked_and_running_rows_may_have_to_go_together():
    driver = strict(max_num_seqs=3)
    of_priority(driver, 5, 9, max_tokens=30)
    driver.add(3, [3], priority=0, credit=1)
    for _ in range(3):
        driver.step()
    assert driver.scheduler.statistics().parked == 1
    driver.add(10, [10], priority=1, n=2, max_tokens=2)

    report = driver.step()

    assert report.preempted.tolist() == [3, 2]
    causes = [each.cause for each in report.decisions if isinstance(each, Preempted)]
    assert causes == [Cause.ROOM, Cause.DISPLACED]
    driver.scheduler.grant(3, 9)
    driver.run()


def test_the_blocks_a_candidate_finds_in_the_cache_free_nothing_for_it():
    """It shares them with the one it might displace, whose leaving would not free them."""
    driver = strict(num_blocks=6, max_model_len=24)
    prefix = list(range(1, 17))
    driver.add(1, prefix, priority=5, max_tokens=2)
    driver.step()
    driver.add(9, [*prefix, 50, 51, 52, 53, 54], priority=1, max_tokens=1)

    report = driver.step()
    # Four blocks are shared, of two that are left one is for growth: one more is lacking
    assert report.preempted.tolist() == [1]
    assert driver.plan is not None
    assert plan_of(driver) == {9: 5}
    driver.run()
    assert driver.tokens[9] == oracle([*prefix, 50, 51, 52, 53, 54], 1)
    assert driver.tokens[1] == oracle(prefix, 2)


def test_a_policy_that_displaces_everybody_still_lets_all_come_to_an_end():
    """The cap ends what would go on for ever."""
    driver = strict({"allow_displacement": "everybody"}, max_num_seqs=2, max_preemptions=3)
    for request in range(6):
        driver.add(request, [request + 1] * 3, max_tokens=6)
    driver.run()

    assert max(Counter(driver.preempted).values()) == 3
    for request in range(6):
        assert driver.tokens[request] == oracle([request + 1] * 3, 6)
