"""The decision log: what happened to a request, in order, bounded, with what was lost counted."""

import pytest

from cadenza.policies.profile import Profile
from cadenza.scheduler.decisions import (
    Admitted,
    Arrived,
    Cause,
    DecisionLog,
    Displaced,
    Finished,
    Parked,
    Preempted,
    RefusedArrival,
    Resumed,
    Unparked,
)
from cadenza.scheduler.request import Refused
from cadenza.scheduler.states import FinishReason
from cadenza.testing import Driver
from cadenza.testing.driver import STEP_S


def records(num: int) -> list[Parked]:
    return [Parked(step, step / 100, request=step % 2) for step in range(num)]


def test_a_drain_gives_each_record_once_oldest_first():
    log = DecisionLog()
    first, second, third = records(3)
    log.append(first)
    log.append(second)
    assert log.drain() == (first, second)
    log.append(third)

    assert log.drain() == (third,)
    assert log.drain() == ()
    assert list(log) == [first, second, third]


def test_of_what_was_drained_only_the_newest_are_remembered():
    log = DecisionLog(remembered=3)
    for record in records(5):
        log.append(record)
        log.drain()

    assert list(log) == records(5)[2:]
    assert log.lost == 0, "all of them were drained"


def test_what_falls_out_before_it_was_drained_is_lost_and_counted():
    log = DecisionLog(size=3)
    for record in records(5):
        log.append(record)

    assert log.drain() == tuple(records(5)[2:])
    assert log.lost == 2

    log.append(records(1)[0])
    assert log.drain() == (records(1)[0],)
    assert log.lost == 2


def test_a_timeline_is_of_one_request_and_outlives_the_drain():
    log = DecisionLog()
    for record in records(5):
        log.append(record)
    log.drain()
    log.append(Unparked(5, 0.05, request=0))

    assert log.timeline(0) == [*records(5)[::2], Unparked(5, 0.05, request=0)]
    assert log.timeline(1) == records(5)[1::2]
    assert log.timeline(2) == []


def full_life() -> Driver:
    """A request that is parked, unparked, displaced, resumed, and ends."""
    chosen = {"order_admissions": "priority", "allow_displacement": "strict-priority"}
    driver = Driver(Profile(chosen), max_num_seqs=1, num_host_blocks=4)
    driver.add(7, [1] * 6, max_tokens=12, priority=5, credit=2)
    for _ in range(3):
        driver.step()
    driver.scheduler.grant(7, 100)
    for _ in range(2):
        driver.step()
    driver.add(8, [2], max_tokens=1, priority=1)
    driver.run()
    return driver


def test_one_life_is_told_from_arrival_to_end():
    driver = full_life()

    timeline = driver.scheduler.timeline(7)

    assert [type(record) for record in timeline] == [
        Arrived,
        Admitted,
        Parked,
        Unparked,
        Displaced,
        Preempted,
        Resumed,
        Finished,
    ]
    assert [record.step_id for record in timeline] == [0, 1, 3, 4, 6, 6, 7, 15]
    times = [record.time_s for record in timeline]
    assert times == pytest.approx([STEP_S * record.step_id for record in timeline])
    arrived, admitted, _, _, displaced, preempted, resumed, end = timeline
    assert arrived == Arrived(0, 0.0, 7, prompt_tokens=6, cached_tokens=0)
    assert admitted == Admitted(1, STEP_S, 7, 0, STEP_S, 0, starving=False)
    assert isinstance(displaced, Displaced)
    assert displaced.by == 8
    assert isinstance(preempted, Preempted)
    assert (preempted.cause, preempted.swapped) == (Cause.DISPLACED, False)
    assert isinstance(resumed, Resumed)
    assert (resumed.rank, resumed.cached_tokens, resumed.from_host) == (0, 8, False)
    assert resumed.wait_s == pytest.approx(STEP_S)
    assert isinstance(end, Finished)
    assert (end.reason, end.generated_tokens) == (FinishReason.LENGTH, 12)


def test_reports_carry_every_record_once_in_order():
    driver = full_life()

    assert driver.decided == list(driver.scheduler._stores.log)
    assert driver.scheduler.timeline(8) == [each for each in driver.decided if each.request == 8]
    assert driver.scheduler.statistics().decisions_lost == 0


def test_a_small_log_loses_the_oldest_and_says_how_many():
    """Two arrivals and a refusal before the first step find room for two."""
    driver = Driver()
    driver.scheduler._stores.log = DecisionLog(2)
    driver.add(1, [1])
    driver.add(2, [2])
    with pytest.raises(Refused):
        driver.add(3, [])
    driver.step()

    assert [type(each) for each in driver.decided] == [Admitted, Admitted]
    assert driver.scheduler.statistics().decisions_lost == 3
    driver.run()
    assert driver.scheduler.timeline(1)[-1:] == [
        each for each in driver.decided if each.request == 1 and isinstance(each, Finished)
    ]
    assert driver.scheduler.statistics().decisions_lost == 3


def test_a_refusal_is_logged_with_its_reason():
    driver = Driver()
    with pytest.raises(Refused, match="the prompt is empty"):
        driver.add(5, [])
    driver.step()

    assert driver.decided == [RefusedArrival(0, 0.0, 5, "the prompt is empty")]


def test_a_request_that_merely_goes_on_writes_nothing():
    driver = Driver()
    driver.add(1, [1], max_tokens=30)
    driver.step()
    for _ in range(20):
        assert driver.step().decisions == ()


def test_every_choice_has_a_timeline_of_its_own():
    driver = Driver()
    driver.add(1, [1, 2], n=2, max_tokens=3)
    driver.scheduler.drop(2)
    driver.step()
    driver.run()

    assert [type(each) for each in driver.scheduler.timeline(1)] == [Arrived, Admitted, Finished]
    assert [type(each) for each in driver.scheduler.timeline(2)] == [Arrived, Finished]
