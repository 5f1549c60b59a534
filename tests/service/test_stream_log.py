"""What a stream keeps of what it told: numbers, places and bounds."""

from __future__ import annotations

import random

import pytest

from cadenza.service.errors import InvalidRequest, OffsetGone
from cadenza.service.stream_log import Place, StreamLog


def log_of(*offsets: tuple[int, ...], max_bytes: int = 1 << 20, size: int = 1) -> StreamLog:
    """One event for each of `offsets`, whose data are their numbers."""
    log = StreamLog(max_bytes)
    for number, each in enumerate(offsets, 1):
        log.append(str(number).encode().ljust(size), each)
    return log


def place(number: int | None = None, *offsets: int) -> Place:
    return Place(field="at", number=number, offsets=offsets or None)


def texts(log: StreamLog, number: int) -> list[str]:
    return [entry.data.decode().strip() for entry in log.after(number)]


def test_events_are_numbered_from_1_and_read_behind_a_number():
    log = log_of((0,), (1,), (3,))

    assert log.num_told == 3
    assert log.offsets == (3,)
    assert texts(log, 0) == ["1", "2", "3"]
    assert texts(log, 2) == ["3"]
    assert texts(log, 3) == []


def test_tokens_that_nobody_took_are_counted():
    log = log_of((0, 0), (1, 0), (1, 2))
    assert log.num_unread_tokens == 3
    log.read(2)
    assert log.num_unread_tokens == 2
    log.read(3)
    assert log.num_unread_tokens == 0


@pytest.mark.parametrize(
    ("where", "number"),
    [
        (place(), 0),
        (place(None, 0), 0),
        (place(1), 1),
        (place(1, 0), 1),
        (place(2, 1), 2),
        (place(None, 1), 2),  # the first event with which the token had been told
        (place(None, 4), 4),
        (place(5, 4), 5),
    ],
)
def test_a_place_is_found_by_number_and_by_tokens(where: Place, number: int):
    assert log_of((0,), (1,), (1,), (4,), (4,)).find(where) == number


@pytest.mark.parametrize(
    ("where", "words"),
    [
        (place(6), "at is beyond event 5"),
        (place(None, 5), "at is beyond 4, the tokens told so far"),
        (place(None, 2), "where no event of this stream ends; the nearest are 1 and 4"),
        (place(2, 4), "1 tokens of its choices had been told with event 2, not 4"),
        (place(None, 1, 1), "at must have one number for each of 1 choices"),
    ],
)
def test_a_place_that_is_none_is_refused_with_what_would_be_right(where: Place, words: str):
    with pytest.raises(InvalidRequest, match=words) as caught:
        log_of((0,), (1,), (1,), (4,), (4,)).find(where)
    assert caught.value.field == "at"


def test_a_place_before_anything_was_told_is_beyond_it():
    for where in (place(1), place(None, 3), place(1, 3)):
        with pytest.raises(InvalidRequest, match="beyond"):
            StreamLog(1).find(where)


def test_choices_have_to_agree_with_one_event():
    log = log_of((1, 0), (1, 1), (2, 1), (2, 2))
    assert log.find(place(None, 2, 1)) == 3
    with pytest.raises(InvalidRequest, match=r"at is 0\.1, where no event"):
        log.find(place(None, 0, 1))
    with pytest.raises(InvalidRequest, match=r"at is 1\.2, where no event"):
        log.find(place(None, 1, 2))


def test_only_what_was_read_is_forgotten_the_oldest_first():
    log = log_of(*[(i,) for i in range(1, 9)], max_bytes=3 * 301, size=100)
    assert texts(log, 0) == [str(i) for i in range(1, 9)], "nobody has read it"

    log.read(2)
    assert texts(log, 2)[0] == "3"
    with pytest.raises(OffsetGone, match="behind event 2, at 2 tokens"):
        log.find(place(1))

    log.read(8)
    assert log.num_bytes <= 3 * 301
    assert log.find(place(5)) == 5
    assert log.find(place(None, 5)) == 5
    for where in (place(), place(4), place(None, 4), place(None, 0)):
        with pytest.raises(OffsetGone, match="behind event 5, at 5 tokens"):
            log.find(where)

    log.append(b"9".ljust(100), (9,))
    assert texts(log, 8) == ["9"]
    assert log.num_told == 9


def test_who_goes_back_keeps_what_he_has_not_read_again():
    log = log_of(*[(i,) for i in range(1, 5)], max_bytes=4 * 301, size=100)
    log.read(4)
    log.read(1)
    for number in range(5, 9):
        log.append(str(number).encode().ljust(100), (number,))
    assert texts(log, 1) == [str(i) for i in range(2, 9)]


def test_the_first_end_counts():
    log = log_of((1,))
    log.end()
    log.end(InvalidRequest("late"))
    assert log.is_ended
    assert log.failure is None


def test_places_are_found_as_a_scan_finds_them():
    """Against a list that forgets nothing."""
    random.seed(5)
    for _ in range(200):
        num_choices = random.randint(1, 3)
        offsets, told = [0] * num_choices, []
        for _ in range(random.randint(1, 12)):
            offsets[random.randrange(num_choices)] += random.randint(0, 2)
            told.append(tuple(offsets))
        log = log_of(*told)
        for wanted in {*told}:
            if any(wanted):
                assert log.find(place(None, *wanted)) == told.index(wanted) + 1
