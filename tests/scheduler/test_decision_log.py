"""The decision log: what happened to a request, in order, bounded, with what was lost counted."""

from cadenza.scheduler.decisions import DecisionLog, Parked, Unparked


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


def test_only_the_newest_are_kept():
    log = DecisionLog(size=3)
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
