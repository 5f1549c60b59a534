"""The engine client against an engine that misbehaves."""

from __future__ import annotations

import asyncio
import time

import pytest
from structlog.testing import capture_logs

from cadenza.service.engine_questions import in_time
from cadenza.service.errors import EngineUnavailable, GenerationFailed
from cadenza.service.request import GenerationRequest
from cadenza.wire.arrays import pack_ids
from cadenza.wire.codec import encode
from cadenza.wire.messages import (
    Cancel,
    Counters,
    Credit,
    DescribePolicies,
    EngineConfig,
    Failed,
    Progress,
    ResetPrefixCache,
    RowLogprobs,
    SetDeadline,
    Shutdown,
    Step,
)


def test_rows_that_nobody_knows_are_ignored(run, open_front):
    async def main():
        async with open_front() as front:
            unknown = (10**9).to_bytes(8, "little")
            front.engine.send(
                Step(
                    step_id=1,
                    requests=unknown,
                    tokens=pack_ids([5]),
                    finished=b"\0",
                    admitted=unknown,
                    admitted_cached=pack_ids([0]),
                    preempted=unknown,
                )
            )
            front.engine.fail("whoever", 10**9)
            generation = await front.generator.submit(GenerationRequest(text="x", max_tokens=1))
            async for _ in generation:
                pass
            assert front.is_clean()

    run(main())


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x03\0\0\0abc",
        b"\xff\xff\xff\xff",
        b"\x01\0\0\0\x90",
    ],
)
def test_bytes_that_are_no_message_end_the_connection(run, open_front, garbage):
    async def main():
        async with open_front() as front:
            front.engine.auto = False
            generation = await front.generator.submit(GenerationRequest(text="x"))
            front.engine._transport.write(garbage)
            with pytest.raises(GenerationFailed) as caught:
                await anext(generation)
            assert caught.value.retryable
            await front.client.lost()

    run(main())


ONE = (1).to_bytes(8, "little")


@pytest.mark.parametrize(
    "arrays",
    [
        {"requests": ONE},
        {"requests": ONE, "tokens": pack_ids([5])},
        {"requests": ONE[:7], "tokens": pack_ids([5]), "finished": b"\0"},
        {"admitted": ONE * 2},
        {"preempted": b"x"},
        {"logprobs": (RowLogprobs(0, -1.0, pack_ids([5])),)},
        {"logprobs": (RowLogprobs(0, -1.0),)},
    ],
)
def test_arrays_that_do_not_fit_together_end_the_connection(run, open_front, arrays):
    async def main():
        async with open_front() as front:
            front.engine.auto = False
            generation = await front.generator.submit(GenerationRequest(text="x"))
            front.engine.send(
                Step(**{"step_id": 1, "admitted": ONE, "admitted_cached": pack_ids([3]), **arrays})
            )
            await front.client.lost()
            assert "cannot read" in front.client.failure
            with pytest.raises(GenerationFailed):  # of a step that is no step, nothing is told
                await anext(generation)

    run(main())


def broken(*args: object, **kwargs: object) -> None:
    raise ValueError("broken")


def of_one(monkeypatch, row, method, instead):
    """Let one row alone do something else."""
    real = getattr(type(row), method)

    def chosen(self, *told, **named):
        return instead(*told, **named) if self is row else real(self, *told, **named)

    monkeypatch.setattr(type(row), method, chosen)


@pytest.mark.parametrize("method", ["on_token", "on_admitted", "on_preempted", "on_parked"])
@pytest.mark.parametrize("on_failed", [None, broken])
def test_a_row_that_raises_fails_alone(run, open_front, monkeypatch, method, on_failed):
    async def main():
        async with open_front() as front:
            front.engine.auto = False
            bad = await front.generator.submit(GenerationRequest(text="x"))
            good = await front.generator.submit(GenerationRequest(text="x", max_tokens=3))
            [row] = bad._choices
            of_one(monkeypatch, row, method, broken)
            if on_failed is not None:
                of_one(monkeypatch, row, "on_failed", on_failed)
            await front.engine.until(lambda: len(front.engine.waiting) == 2)
            front.engine.preempted = [row.number]
            front.engine.decide("parked", row.number)
            with capture_logs() as logs:
                front.engine.resume()
                events = [event async for batch in good for event in batch]

            assert events[-1].completion_tokens == 3
            await front.engine.until(lambda: row.number in front.engine.cancels())
            assert front.client.is_serving
            assert {log["event"] for log in logs} >= {"row_failed"}
            if on_failed is None:
                with pytest.raises(GenerationFailed, match="Something went wrong") as caught:
                    [batch async for batch in bad]
                assert not caught.value.retryable

    run(main())


def test_rows_that_cannot_be_told_of_a_lost_engine_do_not_keep_it_from_others(
    run, open_front, monkeypatch
):
    async def main():
        async with open_front() as front:
            front.engine.auto = False
            bad = await front.generator.submit(GenerationRequest(text="x"))
            good = await front.generator.submit(GenerationRequest(text="x"))
            of_one(monkeypatch, bad._choices[0], "on_failed", broken)
            front.engine.die()
            with pytest.raises(GenerationFailed):
                await anext(good)
            await front.client.lost()

    run(main())


def test_an_engine_that_says_it_failed_is_dead(run, open_front):
    async def main():
        async with open_front(ready=False) as front:
            waiting = asyncio.create_task(front.client.ready())
            front.engine.send(Failed("the weights are missing"))
            with pytest.raises(EngineUnavailable, match="weights are missing"):
                await waiting
            with pytest.raises(EngineUnavailable, match="weights are missing"):
                await front.client.ready()
            with pytest.raises(EngineUnavailable):
                front.client.send(Cancel(1))
            front.client.work.cancel(1)  # never raises
            front.client.work.finish(1, 1)
            await front.client.lost()

    run(main())


def test_credit_deadlines_and_a_reset_reach_the_engine(run, open_front):
    async def main():
        async with open_front() as front:
            front.engine.auto = False
            generation = await front.generator.submit(GenerationRequest(text="x"))
            [choice] = generation._choices
            front.client.work.grant(choice.number, 5)
            front.client.work.set_deadline(choice.number, 12.5)
            front.client.work.set_deadline(choice.number, None)
            front.client.work.set_deadline(choice.number + 1, 1.0)  # nobody's
            front.client.reset_prefix_cache()
            await front.engine.until(lambda: ResetPrefixCache() in front.engine.received)

            assert front.engine.received[1:] == [
                Credit(choice.number, 5),
                SetDeadline(choice.number, 12.5),
                SetDeadline(choice.number, None),
                ResetPrefixCache(),
            ]
            generation.cancel()

    run(main())


def show(front, received: int, *, at_rest: bool = True) -> None:
    """Let the client read a frame, now."""
    counters = Counters(received=received, at_rest=at_rest)
    front.client._connection.data_received(encode(Step(step_id=1, counters=counters)))


def test_a_frame_that_left_before_a_submit_was_read_does_not_hide_that_the_engine_hangs(
    run, open_front
):
    async def main():
        async with open_front() as front:
            front.engine.auto = False
            assert not front.client.is_busy
            for text in "ab":
                await front.generator.submit(GenerationRequest(text=text))
            show(front, 1)
            assert front.client.is_busy
            show(front, 2, at_rest=False)
            assert front.client.is_busy
            show(front, 2)
            assert not front.client.is_busy

    run(main())


def test_an_engine_at_rest_has_something_to_do_once_a_deadline_has_passed(run, open_front):
    """Else the row would wait for ever if the engine hangs while it is parked."""

    async def main():
        async with open_front() as front:
            front.engine.auto = False
            request = GenerationRequest(text="a", deadline_s=time.monotonic() + 3600)
            generation = await front.generator.submit(request)
            show(front, 1)
            assert not front.client.is_busy
            generation.set_deadline(time.monotonic())
            show(front, 2)
            assert front.client.is_busy
            generation.cancel()
            show(front, 3)
            assert not front.client.is_busy

    run(main())


@pytest.mark.parametrize(
    "send",
    [
        lambda client, row: client.work.cancel(row),
        lambda client, row: client.work.finish(row, 1),
        lambda client, row: client.work.grant(row, 1),
        lambda client, row: client.work.set_deadline(row, 1e9),
        lambda client, row: client.reset_prefix_cache(),
    ],
    ids=["cancel", "finish", "grant", "set_deadline", "reset_prefix_cache"],
)
def test_whatever_is_sent_expects_an_answer(run, open_front, send):
    async def main():
        async with open_front() as front:
            front.engine.auto = False
            [choice] = (await front.generator.submit(GenerationRequest(text="x")))._choices
            show(front, 1)
            assert not front.client.is_busy
            send(front.client, choice.number)
            assert front.client.is_busy
            show(front, 2)
            assert not front.client.is_busy

    run(main())


def test_loading_takes_as_long_as_it_takes(run, open_front):
    async def main():
        async with open_front(ready=False) as front:
            front.client.start(EngineConfig(model="m"))
            assert not front.client.is_busy
            front.engine.become_ready()
            await front.client.ready()
            await front.generator.submit(GenerationRequest(text="x"))
            show(front, 1)
            assert not front.client.is_busy

    run(main())


def test_of_a_dead_engine_only_a_reset_is_told(run, open_front):
    async def main():
        async with open_front() as front:
            front.engine.die()
            await front.client.lost()
            front.client.work.grant(1, 5)
            front.client.work.set_deadline(1, 12.5)
            with pytest.raises(EngineUnavailable):
                front.client.reset_prefix_cache()

    run(main())


def test_a_reset_has_ended_when_a_frame_says_that_it_was_handled(run, open_front):
    async def main():
        async with open_front() as front:
            front.engine.auto = False
            await front.generator.submit(GenerationRequest(text="x"))
            first, second = (front.client.reset_prefix_cache() for _ in range(2))
            show(front, 1)
            assert not first.done()
            show(front, 2)
            assert first.done()
            assert not second.done()
            front.engine.die()
            with pytest.raises(EngineUnavailable):
                await second

    run(main())


def test_an_engine_that_loads_has_no_cache_to_reset(run, open_front):
    async def main():
        async with open_front(ready=False) as front:
            with pytest.raises(EngineUnavailable, match="still starting"):
                front.client.reset_prefix_cache()

    run(main())


def test_progress_is_passed_on(run, open_front):
    async def main():
        async with open_front(ready=False) as front:
            seen = []
            front.client.watch_progress(seen.append)
            front.engine.send(Progress("weights", 1, 2))
            front.engine.become_ready()
            await front.client.ready()
            assert seen == [Progress("weights", 1, 2)]

    run(main())


def test_closing_asks_the_engine_to_leave_and_fails_what_runs(run, open_front):
    async def main():
        async with open_front() as front:
            front.engine.auto = False
            generation = await front.generator.submit(GenerationRequest(text="x"))
            front.client.close()
            front.client.close()
            with pytest.raises(GenerationFailed, match="shutting down"):
                await anext(generation)
            await front.engine.until(lambda: Shutdown() in front.engine.received)

    run(main())


def test_draining_refuses_new_requests_and_waits_for_the_running(run, open_front):
    async def main():
        async with open_front() as front:
            front.engine.auto = False
            generation = await front.generator.submit(GenerationRequest(text="x", max_tokens=2))
            draining = asyncio.create_task(front.generator.drain(10))
            await asyncio.sleep(0)
            with pytest.raises(EngineUnavailable, match="shutting down"):
                await front.generator.submit(GenerationRequest(text="x"))
            assert not front.generator.is_ready
            front.engine.resume()
            async for _ in generation:
                pass
            assert await draining

    run(main())


def test_an_engine_that_does_not_answer_is_not_waited_for(run, open_front):
    async def main():
        async with open_front() as front:
            front.engine.answers_questions = False
            with pytest.raises(EngineUnavailable, match=r"has not answered within 0\.01 s"):
                await front.client.ask(DescribePolicies, 0.01)
            assert front.client._questions.num_open == 0
            front.engine.send(front.engine._policies_state(front.engine.received[0].number))
            front.engine.answers_questions = True
            answer = await front.client.ask(DescribePolicies)

            assert answer.number == front.engine.received[1].number, "not the late one"
            assert front.client._questions.num_open == 0

    run(main())


def test_a_reset_that_is_not_confirmed_in_time_is_nobodys(run, open_front):
    async def main():
        async with open_front() as front:
            front.engine.answers_questions = False
            with pytest.raises(EngineUnavailable, match="has not answered"):
                await in_time(front.client.reset_prefix_cache(), 0.01)
            front.engine.answers_questions = True
            await in_time(front.client.reset_prefix_cache())
            assert front.client._questions.num_open == 0

    run(main())


def test_who_gave_up_a_question_leaves_nothing_behind(run, open_front):
    async def main():
        async with open_front() as front:
            front.engine.answers_questions = False
            asked = asyncio.create_task(front.client.ask(DescribePolicies))
            await front.engine.until(lambda: front.engine.received)
            asked.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asked
            assert front.client._questions.num_open == 0

    run(main())
