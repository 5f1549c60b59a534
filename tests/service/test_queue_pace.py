"""How long a newcomer would wait, on a clock that the test sets."""

from __future__ import annotations

import pytest

from cadenza.service.queue_pace import QueuePace


class Queue:
    """Somebody who keeps the pace of a queue that takes so many seats a second."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.waiting = 0
        self.pace = QueuePace(lambda: self.now_s)

    def change(self, number: int) -> None:
        self.pace.advance(somebody_waited=self.waiting > 0)
        self.waiting += number

    def seat_every(self, seconds: float, times: int) -> None:
        for _ in range(times):
            self.now_s += seconds
            self.change(-1)
            self.pace.seated()

    @property
    def wait_s(self) -> float:
        return self.pace.wait_s(self.waiting)


def test_before_anybody_had_a_seat_no_wait_is_known():
    queue = Queue()
    queue.change(5)
    queue.now_s += 10
    assert queue.wait_s == 0.0


def test_those_that_wait_take_as_long_as_the_latest_did():
    queue = Queue()
    queue.change(30)
    queue.seat_every(0.5, 10)
    assert queue.wait_s == pytest.approx(20 * 0.5)
    queue.change(-20)
    assert queue.wait_s == 0.0


def test_time_without_anybody_who_waits_does_not_count():
    queue = Queue()
    queue.change(10)
    queue.seat_every(0.5, 10)
    queue.now_s += 3600
    queue.change(4)
    assert queue.wait_s == pytest.approx(4 * 0.5)


def test_a_queue_that_stands_still_takes_longer_and_longer():
    queue = Queue()
    queue.change(20)
    queue.seat_every(0.5, 11)
    queue.now_s += 5.0
    assert queue.wait_s == pytest.approx(9 * 1.0)


def test_seats_that_come_together_are_told_by_the_time_between_such():
    queue = Queue()
    queue.change(100)
    for _ in range(2):
        queue.now_s += 1.6
        queue.seat_every(0.0001, 32)
    assert queue.wait_s == pytest.approx(36 * 1.6 / 32, rel=0.01)


def test_a_step_that_gives_more_seats_than_tell_is_told_by_the_time_since_the_one_before():
    queue = Queue()
    queue.change(500)
    for _ in range(3):
        queue.now_s += 2.0
        queue.seat_every(0.0, 100)
    assert queue.wait_s == pytest.approx(200 * 2.0 / 100)


def test_only_the_latest_tell():
    queue = Queue()
    queue.change(200)
    queue.seat_every(5.0, 20)
    queue.seat_every(0.1, 64)
    assert queue.wait_s == pytest.approx(116 * 0.1)
