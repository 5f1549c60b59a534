"""Who enters, with which seats and blocks, and what is promised to those who enter."""

import numpy as np
import pytest

from cadenza.policies import RequestColumns, StepView, hookimpl
from cadenza.policies.builtin import BUILTIN
from cadenza.policies.builtin.bounded_overtake import MAX_OVERTAKES
from cadenza.policies.profile import Profile
from cadenza.scheduler.decisions import Admitted, Resumed, Starving
from cadenza.testing import Driver, oracle

GREEDY = {"reserve_blocks": "none"}


def greedy(**limits: object) -> Driver:
    """A driver without any reservation for growth."""
    return Driver(Profile(GREEDY), **limits)


def prompt_of(length: int, first: int = 1) -> list[int]:
    return list(range(first, first + length))


def assert_all_tokens(driver: Driver, request: int, prompt: list[int], num: int, n: int) -> None:
    for choice in range(n):
        assert driver.tokens[request + choice] == oracle(prompt, num, choice)


def test_a_request_takes_a_seat_for_each_of_its_choices():
    driver = Driver(max_num_seqs=4)
    driver.add(1, [1, 2, 3], n=3)
    driver.add(4, [4, 5, 6], n=2)
    driver.add(6, [7], max_tokens=1)

    driver.step()

    assert driver.admitted == [1, 2, 3, 6], "a seat does not stand empty for one that needs two"
    assert driver.plan is not None
    assert len({seated.seat for seated in driver.plan.seated}) == 4
    statistics = driver.scheduler.statistics()
    assert (statistics.running, statistics.waiting) == (4, 2)

    driver.run()
    assert driver.admitted == [1, 2, 3, 6, 4, 5]
    assert_all_tokens(driver, 1, [1, 2, 3], 4, n=3)
    assert_all_tokens(driver, 4, [4, 5, 6], 4, n=2)


def test_a_request_that_lacks_seats_is_passed_over_only_until_it_starves():
    driver = Driver(max_num_seqs=3)
    driver.add(1000, [1], max_tokens=60)
    driver.step()
    driver.add(2000, [2], n=3)
    for request in range(100):
        driver.add(request, [3], max_tokens=1)
    while 2000 not in driver.admitted:
        driver.step()

    ahead = driver.admitted.index(2000) - 1

    assert MAX_OVERTAKES <= ahead <= MAX_OVERTAKES + 2


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_a_request_enters_as_soon_as_there_are_seats_for_all_its_choices(n: int):
    driver = Driver(max_num_seqs=4)
    for request in range(4):
        driver.add(request, [request + 1], max_tokens=2 + request)
    driver.add(10, [9], n=n)
    # Request 0 gets its last token in the reap of step 3, and each next one a step later
    for _ in range(2 + n - 1):
        driver.step()
    assert 10 not in driver.admitted

    driver.step()

    assert driver.admitted[4:] == list(range(10, 10 + n))


@pytest.mark.parametrize(
    ("length", "n", "tails"),
    [(6, 2, 1), (6, 3, 2), (8, 2, 2), (8, 3, 3), (9, 3, 2)],
)
@pytest.mark.parametrize("spare", [0, -1])
def test_a_request_enters_beside_others_only_with_the_tails_of_all_its_choices(
    length: int, n: int, tails: int, spare: int
):
    """Request 0 has one block; the group needs the rest exactly, or one more than there is."""
    needs = -(-length // 4) + tails
    driver = greedy(num_blocks=1 + needs + spare, max_model_len=12)
    driver.add(0, [50], max_tokens=3)
    driver.add(1, prompt_of(length), n=n, max_tokens=2)

    driver.step()

    assert driver.admitted == [0, *range(1, 1 + n)][: None if spare == 0 else 1]
    driver.run()
    assert driver.preempted == []
    assert_all_tokens(driver, 1, prompt_of(length), 2, n)


@pytest.mark.parametrize("when", ["same step", "next step"])
@pytest.mark.parametrize(("blocks", "enters"), [(3, True), (4, False)])
def test_promised_tails_are_not_given_to_later_candidates(when: str, blocks: int, enters: bool):
    """8 blocks: one runs, a group holds two and is promised two, which leaves three."""
    driver = greedy(num_blocks=8, max_model_len=32)
    driver.add(0, [50], max_tokens=3)
    driver.add(1, prompt_of(6), n=3)
    if when == "next step":
        driver.step()
    driver.add(9, prompt_of(4 * blocks, first=100), max_tokens=1)

    driver.step()

    assert (9 in driver.admitted) is enters
    assert driver.preempted == []


def test_a_group_in_mid_prefill_keeps_its_promise():
    """15 blocks: one runs, a group holds ten and is promised two, which leaves two."""
    driver = greedy(num_blocks=15, max_model_len=48, max_num_seqs=9, max_num_batched_tokens=13)
    driver.add(0, [50], max_tokens=9)
    driver.step()
    driver.add(1, prompt_of(39), n=3, max_tokens=2)
    driver.step()
    for request in (7, 8, 9):
        driver.add(request, [60 + request], max_tokens=1)

    driver.step()

    assert driver.plan is not None
    assert driver.plan.requests.tolist() == [0, 1, 7, 8]
    assert driver.plan.num_new.tolist() == [1, 10, 1, 1]
    driver.run()
    assert driver.preempted == []
    assert_all_tokens(driver, 1, prompt_of(39), 2, n=3)


def test_a_group_alone_enters_without_memory_for_its_tails():
    """It would wait for ever otherwise; what there is it is promised all the same."""
    driver = greedy(num_blocks=4, max_model_len=16)
    driver.add(1, prompt_of(10), n=4)
    driver.step()
    assert driver.admitted == [1, 2, 3, 4]
    driver.add(9, [50], max_tokens=1)

    driver.step()

    assert 9 not in driver.admitted
    driver.run()
    assert_all_tokens(driver, 1, prompt_of(10), 4, n=4)


@pytest.mark.parametrize("gone", [[1], [2], [3], [1, 2], [2, 1], [1, 3], [3, 2]])
@pytest.mark.parametrize("steps", [0, 1, 2, 3])
def test_choices_leave_before_the_prompt_is_complete(gone: list[int], steps: int):
    """While queued behind another, and in mid-prefill; whoever stays gets its own tokens."""
    prompt = prompt_of(30)
    driver = Driver(max_num_seqs=4, max_num_batched_tokens=8)
    driver.add(0, [50] * 10, max_tokens=3)
    driver.add(1, prompt, n=3)
    for _ in range(steps):
        driver.step()
    assert not driver.tokens.keys() & {1, 2, 3}
    for choice in gone:
        driver.scheduler.drop(choice)

    driver.step()

    statistics = driver.scheduler.statistics()
    assert statistics.running + statistics.waiting == (0 not in driver.ends) + 3 - len(gone)
    driver.run()
    for choice in {1, 2, 3} - set(gone):
        assert driver.tokens[choice] == oracle(prompt, 4, choice - 1)
    assert not driver.tokens.keys() & set(gone)


@pytest.mark.parametrize("steps", [0, 1, 2])
@pytest.mark.parametrize("order", [[1, 2, 3], [3, 2, 1], [2, 1, 3]])
def test_a_group_whose_choices_all_leave_holds_nothing(steps: int, order: list[int]):
    driver = Driver(max_num_seqs=4, max_num_batched_tokens=8)
    driver.add(1, prompt_of(30), n=3)
    for _ in range(steps):
        driver.step()
    for choice in order:
        driver.scheduler.drop(choice)

    driver.step()

    assert driver.plan is None
    assert not driver.scheduler.has_unfinished
    driver.run()
    assert driver.scheduler.statistics().running == 0


def test_a_dropped_choice_gives_its_seat_and_its_tail_to_others():
    driver = greedy(num_blocks=9, max_model_len=32, max_num_seqs=4, max_num_batched_tokens=8)
    driver.add(0, [50], max_tokens=9)
    driver.add(1, prompt_of(18), n=3, max_tokens=2)  # five blocks, two promised
    driver.step()
    driver.add(9, [60, 60], max_tokens=1)
    driver.step()
    assert 9 not in driver.admitted

    driver.scheduler.drop(2)
    driver.step()

    assert driver.admitted[-1] == 9
    driver.run()
    assert driver.preempted == []
    assert driver.tokens[3] == oracle(prompt_of(18), 2, 2)


@pytest.mark.parametrize("length", [14, 15, 16, 17])
@pytest.mark.parametrize("gone", [1, 2])
def test_the_last_choice_of_a_group_is_promised_nothing_any_more(length: int, gone: int):
    """It grows like anybody, so a pool that is just large enough never has to evict it."""
    driver = Driver(num_blocks=6, max_model_len=24, max_num_seqs=2, max_num_batched_tokens=8)
    driver.add(1, prompt_of(length), n=2, max_tokens=24 - length)
    driver.step()
    driver.scheduler.drop(gone)

    driver.run()

    stays = 3 - gone
    assert driver.preempted == []
    assert driver.tokens[stays] == oracle(prompt_of(length), 24 - length, stays - 1)


def test_choices_are_looked_up_once_in_the_statistics():
    driver = Driver()
    driver.add(1, prompt_of(10), n=3)
    driver.run()
    driver.add(4, prompt_of(9), n=2)
    driver.run()

    statistics = driver.scheduler.statistics()

    assert statistics.prefix_queries == 10 + 9
    assert statistics.prefix_hits == 8
    assert driver.cached == {1: 0, 2: 0, 3: 0, 4: 8, 5: 8}
    assert statistics.computed_tokens == (10 + 3 * 3) + (1 + 2 * 3)
    assert statistics.generated_tokens == 5 * 4


def test_a_request_without_credit_waits_and_keeps_nobody_behind_it():
    driver = Driver(max_num_seqs=1)
    driver.add(1, [1, 2], credit=0)
    driver.add(2, [3, 4])

    while 2 not in driver.ends:
        driver.step()

    assert driver.admitted == [2]
    assert driver.scheduler.has_unfinished
    assert not driver.scheduler.has_work
    assert driver.step().admitted.tolist() == []
    driver.scheduler.grant(1, 4)
    assert driver.scheduler.has_work
    driver.run()
    assert driver.tokens[1] == oracle([1, 2], 4)


def test_a_request_that_does_not_fit_the_tokens_of_the_step_is_passed_over():
    """The third is short enough for what two long prefills leave."""
    driver = Driver(max_num_seqs=4, max_num_batched_tokens=8)
    driver.add(1, prompt_of(30), max_tokens=1)
    driver.add(2, prompt_of(30, first=100), max_tokens=1)
    driver.add(3, [50, 51], max_tokens=1)

    driver.step()

    assert driver.admitted == [1, 3]
    driver.run()
    assert driver.tokens[2] == oracle(prompt_of(30, first=100), 1)


class Starve:
    """Sees starvation in request 1 and in nobody else."""

    @hookimpl
    def guard_starvation(self, waiting: RequestColumns, step: StepView) -> np.ndarray:
        return waiting.request == 1


@pytest.mark.parametrize(("guard", "tokens"), [("starve", 16), ("bounded-overtake", 1)])
def test_who_was_admitted_as_starving_is_pinned_for_sixteen_tokens(guard: str, tokens: int):
    """A better one displaces it as soon as it may."""
    chosen = {
        "order_admissions": "priority",
        "allow_displacement": "strict-priority",
        "guard_starvation": guard,
    }
    driver = Driver(Profile(chosen, {**BUILTIN, "starve": Starve}), max_num_seqs=1)
    driver.add(1, [1, 2], max_tokens=30, priority=5)
    driver.step()
    driver.add(2, [3, 4], max_tokens=2, priority=0)

    while not driver.preempted:
        driver.step()

    assert driver.tokens[1] == oracle([1, 2], tokens)
    assert driver.admitted == [1, 2]
    driver.run()
    assert driver.tokens[1] == oracle([1, 2], 30)


def test_a_mark_of_starvation_is_logged_once_and_shows_in_the_admission():
    profile = Profile({"guard_starvation": "starve"}, {**BUILTIN, "starve": Starve})
    driver = Driver(profile, max_num_seqs=1)
    driver.add(0, [1], max_tokens=3)
    driver.step()
    driver.add(1, [2], max_tokens=1)

    driver.run()

    starving = [record for record in driver.decided if isinstance(record, Starving)]
    assert [record.request for record in starving] == [1]
    admissions = [record for record in driver.decided if isinstance(record, Admitted)]
    assert [(record.request, record.starving) for record in admissions] == [(0, False), (1, True)]


def test_those_who_starve_enter_in_order_of_arrival_whatever_they_score():
    class LatestFirst:
        @hookimpl
        def order_admissions(self, waiting: RequestColumns, step: StepView) -> np.ndarray:
            return -waiting.arrival.astype(float)

    class EverybodyStarves:
        @hookimpl
        def guard_starvation(self, waiting: RequestColumns, step: StepView) -> np.ndarray:
            return np.ones(len(waiting), dtype=bool)

    policies = {**BUILTIN, "latest": LatestFirst, "starve": EverybodyStarves}
    chosen = {"order_admissions": "latest", "guard_starvation": "starve"}
    driver = Driver(Profile(chosen, policies), max_num_seqs=2)
    for request in range(6):
        driver.add(request, [1], max_tokens=1)

    driver.run()

    assert driver.admitted == list(range(6))


def test_a_resumed_row_is_told_from_one_that_is_new():
    driver = greedy(num_blocks=13, max_model_len=24)
    for request in range(3):
        driver.add(request, [request + 1] * 7, max_tokens=12)
    driver.run()

    assert driver.preempted
    for request in range(3):
        times = driver.preempted.count(request)
        kinds = [type(each) for each in driver.scheduler.timeline(request)]
        assert kinds.count(Admitted) == 1
        assert kinds.count(Resumed) == times
