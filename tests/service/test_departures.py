"""Whoever waits for others to leave is woken by the last of them, at once."""

from __future__ import annotations

import asyncio

import pytest

from cadenza.service.departures import Departures
from cadenza.service.errors import InvalidRequest
from cadenza.service.limits import Limits, ResumptionLimits
from cadenza.service.request import GenerationRequest
from cadenza.service.resumable_stream import ResumableStream, StreamKey
from cadenza.service.stream_log import Entry

from .manual_timers import ManualTimers

LONG_S = 1000.0
KEY = StreamKey("", "s")


def ask(**more: object) -> GenerationRequest:
    return GenerationRequest(**{"text": "hello", "max_tokens": 2, **more})  # type: ignore[arg-type]


async def turns() -> None:
    """As few as no timer has a chance in."""
    for _ in range(5):
        await asyncio.sleep(0)


async def drain(front) -> asyncio.Task[bool]:
    """A drain that waits."""
    draining = asyncio.create_task(front.generator.drain(LONG_S))
    await turns()
    assert not draining.done()
    return draining


def test_what_holds_already_is_not_waited_for(run):
    assert run(Departures().until(lambda: True, 0))


def test_time_is_bounded(run):
    assert not run(Departures().until(lambda: False, 0.001))


def test_all_who_wait_look_after_each_departure(run):
    async def main():
        departures, here = Departures(), 2
        waiting = [
            asyncio.create_task(departures.until(lambda: not here, LONG_S)),
            asyncio.create_task(departures.until(lambda: here < 2, LONG_S)),
        ]
        await turns()
        here = 1
        departures.note()
        await turns()
        assert [task.done() for task in waiting] == [False, True]
        here = 0
        departures.note()
        await turns()
        assert [await task for task in waiting] == [True, True]

    run(main())


def test_an_answer_that_is_read_or_given_up_ends_a_drain(run, open_front):
    async def main():
        for is_read in (True, False):
            async with open_front() as front:
                generation = await front.generator.submit(ask())
                draining = await drain(front)
                if is_read:
                    async for _ in generation:
                        pass
                else:
                    generation.cancel()
                await turns()
                assert draining.done()

    run(main())


def test_requests_that_never_run_end_a_drain_when_they_are_refused(run, open_front):
    async def main():
        async with open_front(ready=False) as front:
            wrong = asyncio.create_task(front.generator.submit(ask(max_tokens=-1)))
            encoding = asyncio.create_task(front.generator.encode(ask()))
            draining = await drain(front)
            encoding.cancel()
            await turns()
            assert not draining.done()
            front.engine.become_ready()
            await asyncio.wait([wrong])
            assert isinstance(wrong.exception(), InvalidRequest)
            await turns()
            assert draining.done()

    run(main())


@pytest.mark.parametrize("work", ["submit", "encode"])
def test_the_last_that_gives_up_before_it_runs_ends_a_drain(run, open_front, work):
    """Nobody leaves beside it."""

    async def main():
        async with open_front(ready=False) as front:
            begun = asyncio.create_task(getattr(front.generator, work)(ask()))
            await turns()
            draining = await drain(front)
            begun.cancel()
            await turns()
            assert draining.done()

    run(main())


def test_the_last_that_gives_up_while_it_is_encoded_ends_a_pause(run, open_front, monkeypatch):
    async def never(*_: object) -> None:
        await asyncio.get_running_loop().create_future()

    async def main():
        async with open_front() as front:
            generator = front.generator
            monkeypatch.setattr(generator._encoder, "prompt", never)
            begun = asyncio.create_task(generator.submit(ask()))
            await turns()
            generator.pause()
            waiting = asyncio.create_task(generator.wait_while_paused(LONG_S))
            await turns()
            assert not waiting.done()
            begun.cancel()
            await turns()
            assert waiting.done()

    run(main())


def test_a_pause_is_waited_for_until_all_have_left_or_requests_are_taken_again(run, open_front):
    async def main():
        async with open_front() as front:
            generator = front.generator
            generation = await generator.submit(ask())
            for end in (generator.resume, generation.cancel):
                generator.pause()
                waiting = asyncio.create_task(generator.wait_while_paused(LONG_S))
                await turns()
                assert not waiting.done()
                end()
                await turns()
                assert waiting.done()

    run(main())


def test_a_stream_that_has_ended_ends_a_drain_when_it_is_read_or_forgotten(run, open_front):
    async def tell(stream: ResumableStream) -> None:
        stream.tell([Entry(b"a", (1,))])

    async def fail(stream: ResumableStream) -> None:
        await tell(stream)
        raise InvalidRequest("no")

    async def main():
        for how in (tell, fail):
            for end in ("read", "cancel", "grace"):
                timers = ManualTimers()
                limits = Limits(resumption=ResumptionLimits(grace_s=30))
                async with open_front(limits=limits, later=timers) as front:
                    streams = front.generator.resumption
                    reader = streams.open(KEY, "http", b"", ask(), how)
                    draining = await drain(front)
                    if end == "read":
                        await asyncio.gather(anext(reader), return_exceptions=True)
                        await asyncio.gather(anext(reader), return_exceptions=True)
                    elif end == "cancel":
                        streams.cancel(KEY)
                    else:
                        reader.close()
                        timers.advance(30)
                    await turns()
                    assert draining.done(), (how, end)

    run(main())
