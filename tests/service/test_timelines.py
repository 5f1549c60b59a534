"""What is kept of the scheduler's decisions, and for how long."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from structlog.testing import capture_logs

from cadenza.service.events import Finished
from cadenza.service.request import GenerationRequest
from cadenza.service.timelines import Subject, Timeline, Timelines
from cadenza.wire.messages import Decision, Step, Submit

SUBJECT = Subject(model="m", tenant="", prompt_tokens=5, created=0, began_s=0.0)


def submit(request: int, choice: int = 0, n: int = 1) -> Submit:
    return Submit(request=request, choice=choice, n=n, prompt=b"", max_tokens=1)


def decision(request: int, kind: str = "admitted", time_s: float = 0.0, **facts: int) -> Decision:
    return Decision(kind, request, 7, time_s, facts)


def kinds(timeline: Timeline | None) -> list[tuple[int, str]]:
    assert timeline is not None
    return [(record.choice, record.kind) for record in timeline.records]


def told(timeline: Timeline | None, choice: int) -> list[str]:
    return [kind for index, kind in kinds(timeline) if index == choice]


def test_records_of_all_rows_are_one_timeline_with_their_choices():
    timelines = Timelines()
    timelines.begin("g", [submit(10, n=2), submit(20, choice=2)], SUBJECT)
    timelines.add([decision(11, time_s=1.0), decision(20, time_s=2.0, rank=3)])
    timelines.add([decision(10, "finished", time_s=3.0)])

    timeline = timelines.get("g")
    assert kinds(timeline) == [(1, "admitted"), (2, "admitted"), (0, "finished")]
    assert [record.time_s for record in timeline.records] == [1.0, 2.0, 3.0]
    assert (timeline.records[1].step_id, timeline.records[1].facts) == (7, {"rank": 3})
    assert timeline.num_dropped == 0


def test_unknown_rows_are_ignored_and_unknown_generations_are_none():
    timelines = Timelines()
    timelines.begin("g", [submit(10)], SUBJECT)
    timelines.add([decision(9), decision(11)])

    assert timelines.get("g") == Timeline(records=(), num_dropped=0)
    assert timelines.get("h") is None
    assert timelines.num_dropped == 0


def test_the_newest_records_stay_and_the_others_are_counted():
    timelines = Timelines(max_records_each=3)
    timelines.begin("g", [submit(10, n=2)], SUBJECT)
    timelines.add([decision(10 + index % 2, str(index)) for index in range(8)])

    timeline = timelines.get("g")
    assert [record.kind for record in timeline.records] == ["5", "6", "7"]
    assert timeline.num_dropped == timelines.num_dropped == 5


def test_the_newest_generations_stay_and_nothing_is_left_of_others():
    timelines = Timelines(max_generations=2)
    for index in range(5):
        timelines.begin(f"g{index}", [submit(10 * index, n=3)], SUBJECT)
        timelines.add([decision(10 * index + row) for row in range(3)])
        timelines.end(f"g{index}")
    timelines.add([decision(0, "finished"), decision(30, "finished")])

    assert known(timelines, 5) == [3, 4]
    assert kinds(timelines.get("g3"))[-1] == (0, "finished")
    assert timelines.num_dropped == 0, "they grew old"
    assert sorted(timelines._rows) == [30, 31, 32, 40, 41, 42]


def known(timelines: Timelines, count: int) -> list[int]:
    return [index for index in range(count) if timelines.get(f"g{index}") is not None]


def test_live_generations_stay_while_any_has_ended():
    timelines = Timelines(max_generations=3)
    for index in range(5):
        timelines.begin(f"g{index}", [submit(index)], SUBJECT)
        if index in (1, 3):
            timelines.end(f"g{index}")
            timelines.end(f"g{index}")

    assert known(timelines, 5) == [0, 2, 4]
    timelines.begin("g5", [submit(5)], SUBJECT)
    assert known(timelines, 6) == [2, 4, 5], "none had ended"
    timelines.end("g5")
    timelines.end("nobody")
    timelines.begin("g6", [submit(6)], SUBJECT)
    assert known(timelines, 7) == [2, 4, 6]


def test_all_generations_together_keep_a_bounded_number_of_records():
    timelines = Timelines(max_records=10, max_records_each=4)
    for index in range(4):
        timelines.begin(f"g{index}", [submit(index)], SUBJECT)
    timelines.end("g1")
    timelines.add([decision(request) for request in (0, 1, 2)] * 3)
    assert known(timelines, 4) == [0, 1, 2, 3]

    timelines.add([decision(0)] * 9)  # cuts its own, beyond the first of them
    assert known(timelines, 4) == [0, 1, 2, 3]
    timelines.add([decision(3)])
    assert known(timelines, 4) == [0, 2, 3]
    timelines.add([decision(2), decision(3)])
    assert known(timelines, 4) == [0, 2, 3]
    timelines.add([decision(3), decision(0)])
    assert known(timelines, 4) == [2, 3], "none had ended"
    assert timelines.num_dropped == 8


def test_a_timeline_that_was_read_does_not_change():
    timelines = Timelines()
    timelines.begin("g", [submit(10)], SUBJECT)
    timelines.add([decision(10)])
    before = timelines.get("g")
    timelines.add([decision(10, "finished")])

    assert kinds(before) == [(0, "admitted")]


async def collect(generation) -> Sequence[object]:
    return [event async for batch in generation for event in batch]


def test_a_generation_has_a_timeline_from_arrival_to_end(run, open_front):
    async def main():
        async with open_front(ready=False) as front:
            front.engine.seats = 2
            front.engine.become_ready()
            generation = await front.generator.submit(
                GenerationRequest(text="hello", n=3, max_tokens=2)
            )
            await collect(generation)

            timeline = front.generator.timeline(generation.id)
            for choice in range(3):
                assert told(timeline, choice) == ["arrived", "admitted", "finished"]
            times_s = [record.time_s for record in timeline.records]
            assert times_s == sorted(times_s)
            assert timeline.records[-1].facts == {"reason": "length"}
            assert front.generator.timeline("nobody") is None

    run(main())


def test_a_crowd_of_short_generations_does_not_push_out_a_long_one(run, open_front):
    async def main():
        async with open_front() as front:
            front.generator._timelines.max_generations = 3
            front.engine.auto = False
            long = await front.generator.submit(GenerationRequest(text="long"))
            front.engine.resume()
            short = [
                await front.generator.submit(GenerationRequest(text="short", max_tokens=1))
                for _ in range(2)
            ]
            await collect(short[0])
            short[1].cancel()
            for _ in range(3):
                await collect(await front.generator.submit(GenerationRequest(text="x")))

            assert front.generator.timeline(long.id) is not None
            assert [front.generator.timeline(each.id) for each in short] == [None, None]
            await collect(long)

    run(main())


@pytest.mark.parametrize("ending", ["stopped", "aborted"])
def test_an_end_that_is_told_to_nobody_is_kept(run, open_front, ending):
    """The front has forgotten the row when it stops or cancels it."""

    async def main():
        async with open_front() as front:
            front.says("abcdef")
            request = GenerationRequest(text="x", stop=["b"] if ending == "stopped" else None)
            generation = await front.generator.submit(request)
            if ending == "stopped":
                await collect(generation)
            else:
                generation.cancel()
            with_an_end = await front.generator.submit(GenerationRequest(text="x", max_tokens=9))
            await collect(with_an_end)

            [*_, last] = front.generator.timeline(generation.id).records
            assert (last.kind, last.facts) == ("finished", {"reason": ending})
            assert front.is_clean()

    run(main())


def test_decisions_come_without_any_token(run, open_front):
    async def main():
        async with open_front() as front:
            front.engine.auto = False
            generation = await front.generator.submit(GenerationRequest(text="x", max_tokens=1))
            number = generation._choices[0].number
            front.engine.send(Step(step_id=1, decisions=(decision(number, "starving"),)))
            front.engine.send(Step(step_id=2, decisions=(decision(10**9, "starving"),)))
            front.engine.resume()
            events = await collect(generation)

            assert isinstance(events[-1], Finished)
            assert told(front.generator.timeline(generation.id), 0)[0] == "starving"

    run(main())


def test_a_watcher_that_raises_keeps_nothing_from_the_rows(run, open_front):
    async def main():
        async with open_front() as front:
            front.client.watch_decisions(lambda decisions: 1 / 0)
            with capture_logs() as logs:
                generation = await front.generator.submit(GenerationRequest(text="x"))
                events = await collect(generation)

            assert isinstance(events[-1], Finished)
            assert {log["event"] for log in logs} == {"decision_watcher_failed"}

    run(main())


def test_a_request_that_cannot_be_sent_has_no_timeline(run, open_front, monkeypatch):
    async def main():
        async with open_front() as front:
            monkeypatch.setattr(front.client.work, "submit", lambda message, rows: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                await front.generator.submit(GenerationRequest(text="x"))
            assert front.generator._timelines._rows == {}

    run(main())
