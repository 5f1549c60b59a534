"""A request's life between a client and the engine, without HTTP or gRPC."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from types import SimpleNamespace

import pytest

from cadenza.service.chat_template import ChatTemplate
from cadenza.service.control import Control
from cadenza.service.errors import (
    DeadlineExceeded,
    EngineUnavailable,
    GenerationFailed,
    InvalidRequest,
    Overloaded,
    RequestError,
)
from cadenza.service.events import (
    Admitted,
    Delta,
    Event,
    Finished,
    FinishReason,
    Parked,
    Preempted,
    Resumed,
    Unparked,
)
from cadenza.service.generation import Generation
from cadenza.service.limits import Limits
from cadenza.service.request import GenerationRequest
from cadenza.wire.arrays import pack_ids, view_ids
from cadenza.wire.messages import (
    Cancel,
    Credit,
    Reprioritise,
    ResetPrefixCache,
    SetDeadline,
    Step,
    Submit,
)


def ask(text: str = "hello", **more: object) -> GenerationRequest:
    return GenerationRequest(text=text, **more)  # type: ignore[arg-type]


async def collect(generation: Generation) -> list[Event]:
    return [event async for batch in generation for event in batch]


async def collect_failing(generation: Generation) -> tuple[list[Event], RequestError | None]:
    """All events, and the error after them."""
    events: list[Event] = []
    try:
        async for batch in generation:
            events += batch
    except RequestError as error:
        return events, error
    return events, None


def text_of(events: Sequence[Event], choice: int = 0) -> str:
    return "".join(e.text for e in events if isinstance(e, Delta) and e.choice == choice)


def ends_of(events: Sequence[Event]) -> list[Finished]:
    return [event for event in events if isinstance(event, Finished)]


@pytest.mark.parametrize(
    "text", ["hello world", "příliš žluťoučký", "你好世界", "😀👨‍👩‍👧 x", "\n\n  "]
)
def test_joined_deltas_are_the_text(run, open_front, text):
    async def main():
        async with open_front() as front:
            front.says(text)
            events = await collect(await front.generator.submit(ask(max_tokens=100)))

            assert text_of(events) == text
            assert "\ufffd" not in text
            [end] = ends_of(events)
            num_tokens = len(front.tokenizer.encode_text(text)) + 1
            assert (end.reason, end.stop_reason) == (FinishReason.STOP, None)
            assert end.completion_tokens == num_tokens
            assert sum(len(e.token_ids) for e in events if isinstance(e, Delta)) == num_tokens
            assert isinstance(events[0], Admitted)
            assert events[0].cached_tokens == 3
            assert front.is_clean()

    run(main())


@pytest.mark.parametrize(
    ("text", "stops", "expected", "stop"),
    [
        ("hello\nworld", ["\n"], "hello", "\n"),
        ("one STOP two", ["STOP"], "one ", "STOP"),
        ("one STO", ["STOP"], "one STO", None),
        ("abcd", ["abcd", "c"], "ab", "c"),
        ("aaab", ["aab"], "a", "aab"),
        ("x😀y", ["😀"], "x", "😀"),
        ("hello world", ["zzzz" * 12], "hello world", None),
        ("end\n", ["\n"], "end", "\n"),
    ],
)
def test_a_stop_string_ends_the_text_before_it(run, open_front, text, stops, expected, stop):
    async def main():
        async with open_front() as front:
            front.says(text)
            events = await collect(await front.generator.submit(ask(max_tokens=100, stop=stops)))

            assert text_of(events) == expected
            [end] = ends_of(events)
            assert (end.reason, end.stop_reason) == (FinishReason.STOP, stop)
            if stop is not None:
                await front.engine.until(lambda: bool(front.engine.finishes()))
                assert front.engine.finishes()[0].tokens_kept == end.completion_tokens
            await front.engine.until(front.is_clean)

    run(main())


def test_a_stop_string_in_the_last_token_needs_no_finish(run, open_front):
    async def main():
        async with open_front() as front:
            front.says("ab")
            request = ask(max_tokens=2, stop=["b"])
            [end] = ends_of(await collect(await front.generator.submit(request)))

            assert (end.reason, end.stop_reason) == (FinishReason.STOP, "b")
            assert front.engine.finishes() == []

    run(main())


def test_a_stop_token_is_counted_and_not_shown(run, open_front):
    async def main():
        async with open_front() as front:
            front.says("abc")
            stop = front.tokenizer.encode_text("b")[0]
            request = ask(max_tokens=9, stop_token_ids=[stop])
            events = await collect(await front.generator.submit(request))

            assert text_of(events) == "a"
            [end] = ends_of(events)
            assert (end.stop_reason, end.completion_tokens) == (stop, 2)

    run(main())


def test_a_text_cut_inside_a_character_ends_with_the_replacement(run, open_front):
    async def main():
        async with open_front() as front:
            front.says("a😀")
            [events] = [await collect(await front.generator.submit(ask(max_tokens=3)))]

            assert text_of(events) == "a\ufffd"
            assert ends_of(events)[0].reason is FinishReason.LENGTH

    run(main())


def test_bytes_that_never_become_a_character_are_not_held_for_ever(run, open_front):
    async def main():
        async with open_front() as front:
            lone = front.tokenizer.encode_text("č")[0]  # 0xC4
            front.says_tokens(*[lone] * 20)
            front.engine.auto = False
            generation = await front.generator.submit(ask(max_tokens=20))
            await front.engine.until(lambda: bool(front.engine.waiting))
            front.engine.step(8)
            batch = await anext(generation)
            while not text_of(batch):
                batch += await anext(generation)

            assert set(text_of(batch)) == {"\ufffd"}
            generation.cancel()

    run(main())


def test_choices_are_one_submit_and_a_row_each(run, open_front):
    async def main():
        async with open_front() as front:
            events = await collect(await front.generator.submit(ask(n=3, max_tokens=5)))

            [submit] = front.engine.submits()
            assert (submit.choice, submit.n) == (0, 3)
            assert sorted(end.choice for end in ends_of(events)) == [0, 1, 2]
            assert len({text_of(events, choice) for choice in range(3)}) == 3
            assert len([e for e in events if isinstance(e, Admitted)]) == 1
            assert front.is_clean()

    run(main())


def test_numbers_are_never_given_out_twice(run, open_front):
    async def main():
        async with open_front() as front:
            front.engine.auto = False
            generations = await front.generator.submit_all([ask(n=3), ask(), ask(n=2)])
            await front.engine.until(lambda: len(front.engine.waiting) == 6)

            assert [submit.n for submit in front.engine.submits()] == [3, 1, 2]
            numbers = [choice.number for each in generations for choice in each._choices]
            assert numbers == list(front.engine.waiting)
            front.engine.resume()
            for generation in generations:
                await collect(generation)

    run(main())


@pytest.mark.parametrize(
    ("n", "groups"), [(4, [(0, 4)]), (5, [(0, 4), (4, 1)]), (8, [(0, 4), (4, 4)])]
)
def test_choices_beyond_the_seats_come_in_groups(run, open_front, n, groups):
    async def main():
        async with open_front(ready=False) as front:
            front.engine.seats = 4
            front.engine.become_ready()
            events = await collect(await front.generator.submit(ask(n=n, max_tokens=20, seed=7)))

            submits = front.engine.submits()
            assert [(submit.choice, submit.n) for submit in submits] == groups
            assert submits[-1].request - submits[0].request == submits[-1].choice
            assert {submit.sampling.seed for submit in submits} == {7}
            assert sorted(end.choice for end in ends_of(events)) == list(range(n))
            assert len({text_of(events, choice) for choice in range(n)}) == n
            assert front.is_clean()

    run(main())


def test_a_choice_that_stops_early_leaves_the_others_running(run, open_front):
    async def main():
        async with open_front() as front:
            replies = [front.tokenizer.encode_text(text) for text in ("abcdef", "axy", "abcdef")]
            front.engine.reply = lambda submit: replies[submit.choice]
            request = ask(n=3, max_tokens=6, stop=["x"])
            events = await collect(await front.generator.submit(request))

            [submit] = front.engine.submits()
            [finish] = front.engine.finishes()
            assert (finish.request, finish.tokens_kept) == (submit.request + 1, 2)
            assert [text_of(events, choice) for choice in range(3)] == ["abcdef", "a", "abcdef"]
            assert len(ends_of(events)) == 3

    run(main())


@pytest.mark.parametrize(("refused", "cancelled"), [([1], [0]), ([0, 1], [1])])
def test_a_refusal_of_one_row_ends_them_all(run, open_front, refused, cancelled):
    async def main():
        async with open_front() as front:
            front.engine.auto = False
            generation = await front.generator.submit(ask(n=2))
            await front.engine.until(lambda: len(front.engine.waiting) == 2)
            numbers = list(front.engine.waiting)
            for choice in refused:  # a refused submit is one message a row
                front.engine.fail("too long", numbers[choice])
            with pytest.raises(GenerationFailed, match="too long"):
                await collect(generation)
            await front.engine.until(lambda: bool(front.engine.cancels()))

            assert front.engine.cancels() == [numbers[choice] for choice in cancelled]
            assert len(front.client.work) == 0
            assert front.generator.is_idle

    run(main())


def test_a_seed_is_drawn_where_none_is_given(run, open_front):
    async def main():
        async with open_front() as front:
            for _ in range(4):
                await collect(await front.generator.submit(ask(max_tokens=1)))
            await collect(await front.generator.submit(ask(max_tokens=1, seed=-1)))

            seeds = [submit.sampling.seed for submit in front.engine.submits()]
            assert len(set(seeds)) == 5
            assert seeds[-1] == 2**64 - 1

    run(main())


def test_a_slow_reader_loses_nothing(run, open_front):
    async def main():
        async with open_front() as front:
            front.says("hello world")
            front.engine.auto = False
            generation = await front.generator.submit(ask(max_tokens=100))
            await front.engine.until(lambda: bool(front.engine.waiting))
            front.engine.step(20)
            await front.told()
            assert generation.is_over
            batch = await anext(generation)

            assert text_of(batch) == "hello world"
            assert len([event for event in batch if isinstance(event, Delta)]) == 1
            with pytest.raises(StopAsyncIteration):
                await anext(generation)

    run(main())


def test_cancelling_tells_the_engine_once(run, open_front):
    async def main():
        async with open_front() as front:
            front.engine.auto = False
            generation = await front.generator.submit(ask(n=2))
            generation.cancel()
            generation.cancel()
            await front.engine.until(lambda: len(front.engine.cancels()) == 2)

            assert [event async for event in generation] == []
            assert front.is_clean()
            assert front.generator.metrics.finished["abort"] == 1

    run(main())


def test_leaving_the_context_cancels(run, open_front):
    async def main():
        async with open_front() as front:
            async with await front.generator.submit(
                ask(max_tokens=200, ignore_eos=True)
            ) as running:
                await anext(running)
            await front.engine.until(lambda: bool(front.engine.cancels()))
            await front.engine.until(front.is_clean)

    run(main())


def test_a_waiting_reader_is_woken_by_cancel(run, open_front):
    async def main():
        async with open_front() as front:
            front.engine.auto = False
            generation = await front.generator.submit(ask())
            reader = asyncio.create_task(collect(generation))
            await asyncio.sleep(0)
            generation.cancel()

            assert await reader == []

    run(main())


def test_preemption_is_told(run, open_front):
    async def main():
        async with open_front() as front:
            front.engine.auto = False
            generation = await front.generator.submit(ask())
            await front.engine.until(lambda: bool(front.engine.waiting))
            front.engine.step()
            front.engine.preempted = list(front.engine.running)
            front.engine.step()
            events: list[Event] = []
            while not any(isinstance(event, Preempted) for event in events):
                events += await anext(generation)
            generation.cancel()

    run(main())


def test_what_the_scheduler_does_with_a_choice_is_told_in_order(run, open_front):
    async def main():
        async with open_front() as front:
            front.engine.auto = False
            generation = await front.generator.submit(ask(n=2))
            await front.engine.until(lambda: bool(front.engine.waiting))
            front.engine.step()
            first, second = front.engine.running
            front.engine.preempted = [second]
            front.engine.step()
            front.engine.admitted_again = [second]
            front.engine.decide("parked", first)
            front.engine.step()
            front.engine.decide("unparked", first)
            front.engine.step()
            events: list[Event] = []
            while not any(isinstance(event, Unparked) for event in events):
                events += await anext(generation)
            generation.cancel()

        assert [event for event in events if not isinstance(event, Delta)] == [
            Admitted(cached_tokens=3),
            Preempted(choice=1),
            Resumed(choice=1),
            Parked(choice=0),
            Unparked(choice=0),
        ]

        def told_before(notice: Event, choice: int) -> int:
            deltas = [each for each in events[: events.index(notice)] if isinstance(each, Delta)]
            return sum(len(delta.token_ids) for delta in deltas if delta.choice == choice)

        # One token a step: whoever is told that it waits has all that came before
        assert told_before(Preempted(choice=1), 1) == 2
        assert told_before(Parked(choice=0), 0) == 3
        assert told_before(Unparked(choice=0), 0) == 4

    run(main())


def test_a_running_generation_gets_another_priority_deadline_and_credit(run, open_front):
    async def main():
        async with open_front() as front:
            front.engine.auto = False
            generation = await front.generator.submit(ask(n=2, credit=6))
            await front.engine.until(lambda: bool(front.engine.waiting))
            [submit] = front.engine.submits()
            assert submit.credit == 6
            first = submit.request
            generation.reprioritise(-3)
            generation.set_deadline(None)
            generation.grant(5)
            reset = front.client.reset_prefix_cache()
            await reset

            assert front.engine.received[-6:-1] == [
                Reprioritise(first, -3),
                Reprioritise(first + 1, -3),
                SetDeadline(first, None),
                SetDeadline(first + 1, None),
                Credit(first, 5),
            ]
            generation.cancel()
            told = len(front.engine.received)
            generation.reprioritise(1)
            generation.set_deadline(None)
            generation.grant(1)
            await front.client.reset_prefix_cache()

            later = front.engine.received[told:]
            assert [type(message) for message in later] == [Cancel, Cancel, ResetPrefixCache]

    run(main())


def test_what_is_wanted_before_the_engine_has_the_request_is_in_its_message(run, open_front):
    """The last word counts; credits add up. An old deadline would end the request at once."""

    async def main():
        async with open_front(ready=False) as front:
            control = Control()
            request = ask(deadline_s=time.monotonic() - 1, credit=2)
            task = asyncio.create_task(front.generator.submit(request, control))
            await asyncio.sleep(0)  # it waits for the engine now
            assert front.generator.num_queued == 1
            control.set_deadline(1.0)
            control.reprioritise(7)
            control.grant(3)
            control.set_deadline(None)
            control.reprioritise(-7)
            control.grant(4)
            front.engine.become_ready()
            generation = await task
            await front.client.reset_prefix_cache()

            [submit] = front.engine.submits()
            assert (submit.priority, submit.deadline_s, submit.credit) == (-7, None, 2)
            granted = [each for each in front.engine.received if isinstance(each, Credit)]
            assert granted == [Credit(submit.request, 7)]
            control.reprioritise(1)
            control.set_deadline(5.0)
            control.grant(1)
            await front.client.reset_prefix_cache()
            assert front.engine.received[-4:-1] == [
                Reprioritise(submit.request, 1),
                SetDeadline(submit.request, 5.0),
                Credit(submit.request, 1),
            ]
            generation.cancel()

    run(main())


def test_whoever_sheds_sees_the_priority_that_a_client_wants_by_now(run, open_front):
    async def main():
        limits = Limits(max_queued=2)
        async with open_front(limits=limits, chosen={"shed_load": "lowest-priority"}) as front:
            front.engine.auto = False
            front.engine.seats = 0
            control = Control()
            raised = await front.generator.submit(ask(priority=5), control)
            control.reprioritise(-5)
            lowered = Control()
            other = await front.generator.submit(ask(priority=-1), lowered)
            lowered.reprioritise(3)
            newcomer = await front.generator.submit(ask(priority=0))

            with pytest.raises(Overloaded):
                await collect(other)
            assert not raised.is_over
            raised.cancel()
            newcomer.cancel()

    run(main())


def test_a_later_deadline_counts_for_how_the_end_is_told(run, open_front):
    """What its client gives up long before the new deadline was not ended by a deadline."""

    async def main():
        async with open_front() as front:
            front.engine.auto = False
            generation = await front.generator.submit(ask(deadline_s=time.monotonic() + 0.001))
            generation.set_deadline(time.monotonic() + 3600)
            generation.cancel()

            assert front.generator.metrics.finished["abort"] == 1

    run(main())


def test_who_waited_before_is_known_when_a_generation_begins(run, open_front):
    async def main():
        async with open_front() as front:
            front.engine.auto = False
            before = await front.generator.submit(ask(n=3))
            generation = await front.generator.submit(ask(n=2))

            assert (before.queue_position, generation.queue_position) == (0, 3)
            before.cancel()
            generation.cancel()

    run(main())


@pytest.mark.parametrize(
    ("n", "credit"), [(1, -1), (1, 1 << 32), (2, 1), (3, 0), (1, 1.5), (1, "4")]
)
def test_a_credit_is_a_number_that_gives_each_choice_a_token(run, open_front, n, credit):
    async def main():
        async with open_front() as front:
            with pytest.raises(InvalidRequest) as caught:
                await front.generator.submit(ask(n=n, credit=credit))
            assert caught.value.field == "credit"

    run(main())


def test_choices_beyond_the_engines_seats_share_no_credit(run, open_front):
    async def main():
        async with open_front(ready=False) as front:
            front.engine.seats = 2
            front.engine.become_ready()
            await front.client.ready()
            with pytest.raises(InvalidRequest, match="at most 2 choices") as caught:
                await front.generator.submit(ask(n=3, credit=3))
            assert caught.value.field == "n"
            assert front.generator.is_idle

    run(main())


def test_the_engines_death_ends_everything(run, open_front):
    async def main():
        async with open_front() as front:
            front.engine.auto = False
            first = await front.generator.submit(ask())
            second = await front.generator.submit(ask(n=2))
            front.engine.die()
            for generation in (first, second):
                with pytest.raises(GenerationFailed) as caught:
                    await collect(generation)
                assert caught.value.retryable
            with pytest.raises(EngineUnavailable):
                await front.generator.submit(ask())
            assert len(front.client.work) == 0
            assert front.generator.num_queued == 0

    run(main())


def test_one_rows_failure_leaves_the_others_alone(run, open_front):
    async def main():
        async with open_front() as front:
            front.engine.auto = False
            bad = await front.generator.submit(ask(n=2))
            good = await front.generator.submit(ask(max_tokens=3))
            await front.engine.until(lambda: len(front.engine.waiting) == 3)
            front.engine.step()
            front.engine.fail("no luck", front.engine.submits()[0].request)
            with pytest.raises(GenerationFailed, match="no luck") as caught:
                await collect(bad)
            assert not caught.value.retryable
            front.engine.resume()
            assert ends_of(await collect(good))[0].completion_tokens == 3
            await front.engine.until(front.is_clean)

    run(main())


def test_a_deadline_ends_a_choice_after_its_text(run, open_front):
    async def main():
        async with open_front() as front:
            front.says("abc😀")
            front.engine.auto = False
            generation = await front.generator.submit(ask(n=2, stop=["c!"]))
            await front.engine.until(lambda: len(front.engine.waiting) == 2)
            front.engine.step(4)  # "c" may begin a stop string, and a character is open
            front.engine.expire(*front.engine.running)
            front.engine.step()
            events, error = await collect_failing(generation)

            assert isinstance(error, DeadlineExceeded)
            assert [text_of(events, choice) for choice in (0, 1)] == ["abc\ufffd"] * 2
            assert ends_of(events) == []
            assert front.engine.cancels() == []
            assert front.is_clean()
            assert front.generator.is_idle
            assert front.generator.metrics.finished["deadline"] == 1
            assert front.generator.metrics.generation_tokens == 8

    run(main())


def test_a_deadline_waits_for_choices_that_go_on(run, open_front):
    async def main():
        async with open_front() as front:
            front.engine.auto = False
            generation = await front.generator.submit(ask(n=2, max_tokens=5))
            await front.engine.until(lambda: len(front.engine.waiting) == 2)
            front.engine.step(2)
            front.engine.expire(generation._choices[0].number)
            front.engine.resume()
            events, error = await collect_failing(generation)

            assert isinstance(error, DeadlineExceeded)
            assert [end.choice for end in ends_of(events)] == [1]
            assert ends_of(events)[0].completion_tokens == 5
            assert front.is_clean()

    run(main())


def test_a_token_that_comes_with_the_deadline_counts(run, open_front):
    async def main():
        async with open_front() as front:
            front.engine.auto = False
            for stop in ([], ["ab"]):
                generation = await front.generator.submit(ask(stop=stop))
                await front.engine.until(lambda: bool(front.engine.waiting))
                number = generation._choices[0].number
                for token, end in zip(front.tokenizer.encode_text("ab"), (0, 5), strict=True):
                    front.engine.send(
                        Step(
                            step_id=1,
                            requests=number.to_bytes(8, "little"),
                            tokens=pack_ids([token]),
                            finished=bytes([end]),
                        )
                    )
                events, error = await collect_failing(generation)

                assert text_of(events) == ("" if stop else "ab")
                assert len(ends_of(events)) == len(stop)  # a stop string is an end of its own
                assert (error is None) == bool(stop)
                front.engine.waiting.clear()
            assert front.is_clean()

    run(main())


@pytest.mark.parametrize(
    ("deadline_s", "cancelled_s", "reason"),
    [
        (110.0, 105.0, "abort"),
        (110.0, 109.9, "deadline"),  # a client whose timeout of 9.91 s became 10 s
        (110.0, 111.0, "deadline"),
        (90.0, 100.0, "deadline"),
        (None, 1e9, "abort"),
    ],
)
def test_a_cancel_at_the_deadline_is_counted_as_its_passing(
    run, open_front, monkeypatch, deadline_s, cancelled_s, reason
):
    async def main():
        async with open_front() as front:
            front.engine.auto = False
            clock = SimpleNamespace(time=time.time, monotonic=lambda: 100.0)
            monkeypatch.setattr("cadenza.service.generation.time", clock)
            generation = await front.generator.submit(ask(deadline_s=deadline_s))
            clock.monotonic = lambda: cancelled_s
            generation.cancel()

            finished = front.generator.metrics.finished
            assert {name for name, count in finished.items() if count} == {reason}

    run(main())


def test_a_deadline_reaches_the_engine(run, open_front):
    async def main():
        async with open_front() as front:
            await collect(await front.generator.submit(ask(n=2, max_tokens=1, deadline_s=1e12)))
            late = await front.generator.submit(ask(deadline_s=0.0))
            events, error = await collect_failing(late)

            assert [submit.deadline_s for submit in front.engine.submits()] == [1e12, 0.0]
            assert isinstance(error, DeadlineExceeded)
            assert events == [] or isinstance(events[0], Admitted)

    run(main())


def test_a_full_queue_refuses(run, open_front):
    async def main():
        async with open_front(limits=Limits(max_queued=2)) as front:
            front.engine.auto = False
            waiting = await front.generator.submit(ask(n=2))
            with pytest.raises(Overloaded) as caught:
                await front.generator.submit(ask())
            assert caught.value.retry_after_s == 1.0
            await front.engine.until(lambda: bool(front.engine.waiting))
            front.engine.step()
            await anext(waiting)
            after = await front.generator.submit(ask())
            after.cancel()
            waiting.cancel()
            assert front.is_clean() or front.generator.num_queued == 0

    run(main())


def test_requests_wait_while_the_engine_loads(run, open_front):
    async def main():
        async with open_front(ready=False, limits=Limits(max_queued=1)) as front:
            early = asyncio.create_task(front.generator.submit(ask(max_tokens=2)))
            await asyncio.sleep(0)
            with pytest.raises(Overloaded):
                await front.generator.submit(ask())
            front.engine.become_ready()
            assert ends_of(await collect(await early))

    run(main())


def test_requests_that_wait_for_an_engine_that_dies_are_told(run, open_front):
    async def main():
        async with open_front(ready=False) as front:
            early = asyncio.create_task(front.generator.submit(ask()))
            await asyncio.sleep(0)
            front.engine.die()
            with pytest.raises(EngineUnavailable):
                await early
            assert front.generator.num_queued == 0

    run(main())


def test_cancelling_while_encoding_leaves_nothing(run, open_front, monkeypatch):
    async def main():
        async with open_front() as front:
            entered, leave = threading.Event(), threading.Event()

            def slow(text, **options):
                entered.set()
                leave.wait(10)
                return [1, 2]

            monkeypatch.setattr(front.tokenizer, "encode_text", slow)
            task = asyncio.create_task(front.generator.submit(ask()))
            await asyncio.to_thread(entered.wait, 10)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            leave.set()

            assert front.engine.submits() == []
            assert front.is_clean()

    run(main())


def test_encoding_never_runs_on_the_loops_thread(run, open_front, monkeypatch):
    threads = set()

    def record(function):
        def recorded(*args, **kwargs):
            threads.add(threading.get_ident())
            return function(*args, **kwargs)

        return recorded

    async def main():
        async with open_front() as front:
            encode = record(front.tokenizer._encode_marked)
            monkeypatch.setattr(front.tokenizer, "_encode_marked", encode)
            monkeypatch.setattr(front.tokenizer, "encode_text", record(front.tokenizer.encode_text))
            monkeypatch.setattr(ChatTemplate, "render", record(ChatTemplate.render))
            await collect(await front.generator.submit(ask(max_tokens=1)))
            chat = GenerationRequest(messages=[{"role": "user", "content": "hi"}], max_tokens=1)
            await collect(await front.generator.submit(chat))

    run(main())
    assert threads
    assert threading.get_ident() not in threads


@pytest.mark.parametrize(
    "broken",
    [
        "cadenza.service.job.pack_ids",
        "cadenza.service.generator.Generation",
        "cadenza.service.generation.Choice",
        "cadenza.service.tokenizer.Detokenizer",
    ],
)
def test_a_request_that_cannot_be_built_leaves_no_place_taken(run, open_front, monkeypatch, broken):
    async def main():
        async with open_front(limits=Limits(max_queued=3)) as front:
            with monkeypatch.context() as patched:
                patched.setattr(broken, lambda *args, **kwargs: 1 / 0)
                with pytest.raises(ZeroDivisionError):
                    await front.generator.submit(ask(n=3))

            assert front.generator.num_queued == 0
            assert front.generator.is_idle
            assert front.engine.submits() == []
            assert len(ends_of(await collect(await front.generator.submit(ask(n=3))))) == 3

    run(main())


def test_of_several_requests_all_are_started_or_none(run, open_front):
    wrong = [
        (ask("x" * 255, max_tokens=2), InvalidRequest),
        (ask(temperature=-1), InvalidRequest),
        (ask(n=3), Overloaded),
    ]

    async def main():
        async with open_front(limits=Limits(max_queued=4)) as front:
            for request, error in wrong:
                with pytest.raises(error):
                    await front.generator.submit_all([ask(), ask(), request])
                assert front.generator.is_idle
            assert front.engine.submits() == []

            both = await front.generator.submit_all([ask("a", max_tokens=2), ask("b", n=2)])
            assert [generation.num_choices for generation in both] == [1, 2]
            for generation in both:
                await collect(generation)
            assert front.generator.is_idle

    run(main())


def test_those_started_are_cancelled_when_a_later_one_cannot_be(run, open_front, monkeypatch):
    async def main():
        async with open_front() as front:
            front.engine.auto = False
            sends = iter([front.client.send, front.client.send])
            send = front.client.send

            def break_third(message):
                if isinstance(message, Submit) and next(sends, None) is None:
                    raise EngineUnavailable("gone")
                send(message)

            monkeypatch.setattr(front.client, "send", break_third)
            with pytest.raises(EngineUnavailable):
                await front.generator.submit_all([ask(), ask(), ask()])
            await front.engine.until(lambda: len(front.engine.cancels()) == 2)

            assert front.generator.is_idle

    run(main())


def test_a_call_of_several_prompts_is_served_whole_when_draining_begins_within(
    run, open_front, monkeypatch
):
    async def main():
        async with open_front() as front:
            encode_text = front.tokenizer.encode_text
            draining = []
            loop = asyncio.get_running_loop()

            def drain():
                draining.append(loop.create_task(front.generator.drain(10)))

            def encode(text, **options):
                if not draining:
                    loop.call_soon_threadsafe(drain)
                    while not draining:
                        pass
                return encode_text(text)

            monkeypatch.setattr(front.tokenizer, "encode_text", encode)
            generations = await front.generator.submit_all([ask("a"), ask("b")])
            assert not front.generator.is_ready
            for generation in generations:
                assert ends_of(await collect(generation))
            assert await draining[0]

    run(main())


async def finished_unread(front) -> Generation:
    front.engine.auto = False
    generation = await front.generator.submit(ask(max_tokens=2))
    await front.engine.until(lambda: bool(front.engine.waiting))
    await front.step(2)
    assert generation.is_over
    return generation


def test_draining_waits_for_answers_that_are_not_read_yet(run, open_front):
    async def main():
        async with open_front() as front:
            generation = await finished_unread(front)
            assert not await front.generator.drain(0)
            async with generation:
                await collect(generation)
                assert not front.generator.is_idle
            assert front.generator.is_idle

    run(main())


def test_an_answer_that_is_given_up_keeps_nobody_waiting(run, open_front):
    async def main():
        async with open_front() as front:
            generation = await finished_unread(front)
            assert not front.generator.is_idle
            generation.cancel()
            assert front.generator.is_idle

    run(main())


LONG = "hell" * 75_000


@pytest.mark.parametrize(
    "request_",
    [ask(LONG), GenerationRequest(messages=[{"role": "user", "content": LONG}])],
    ids=["text", "chat"],
)
def test_the_loop_turns_while_a_long_prompt_is_encoded(run, open_front, monkeypatch, request_):
    async def main():
        async with open_front(max_model_len=10**6) as front:
            encoding = threading.Event()
            encoder = front.generator._encoder
            encode_now = encoder._encoded

            def encode(*args):
                encoding.set()
                try:
                    return encode_now(*args)
                finally:
                    encoding.clear()

            monkeypatch.setattr(encoder, "_encoded", encode)
            submitted = asyncio.create_task(front.generator.submit(request_))
            turns = 0
            while not submitted.done():
                await asyncio.sleep(0.001)
                turns += encoding.is_set()
            (await submitted).cancel()

            # held by one thread alone, the interpreter lets the loop in once or twice
            assert turns >= 10

    run(main())


def test_nobody_encodes_or_waits_for_a_call_that_was_shed(run, open_front, monkeypatch):
    go_on = threading.Event()

    async def main():
        chosen = {"shed_load": "lowest-priority"}
        async with open_front(limits=Limits(max_queued=3), chosen=chosen) as front:
            front.engine.auto = False
            encoder, encoded = front.generator._encoder, []
            encode_now = encoder._encoded

            def encode(prompt, *limits):
                encoded.append(prompt.text)
                go_on.wait(10)
                return encode_now(prompt, *limits)

            monkeypatch.setattr(encoder, "_encoded", encode)
            first, second, third = [
                asyncio.create_task(front.generator.submit(ask(text, priority=priority)))
                for text, priority in (("a", 0), ("b", 1), ("c", 2))
            ]
            while front.generator.num_queued < 3 or len(encoded) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0)
            for shed in (third, second):  # whose turn has not come, and whose thread is at it
                await front.generator.submit(GenerationRequest(token_ids=[1]))
                with pytest.raises(Overloaded):
                    await shed
            go_on.set()
            await first

            assert encoded == ["a", "b"]

    try:
        run(main())
    finally:
        go_on.set()


def test_a_call_that_is_shed_as_its_client_leaves_is_cancelled(run, open_front, monkeypatch):
    async def main():
        chosen = {"shed_load": "lowest-priority"}
        async with open_front(limits=Limits(max_queued=1), chosen=chosen) as front:

            async def forever(*_):
                await asyncio.Event().wait()

            encoder = front.generator._encoder
            encode = encoder.prompt
            monkeypatch.setattr(encoder, "prompt", forever)
            call = asyncio.create_task(front.generator.submit(ask("a", priority=1)))
            await asyncio.sleep(0)
            assert front.generator.num_queued == 1
            monkeypatch.setattr(encoder, "prompt", encode)
            newcomer = asyncio.create_task(front.generator.submit(GenerationRequest(token_ids=[1])))
            call.get_loop().call_soon(call.cancel)
            (await newcomer).cancel()

            with pytest.raises(asyncio.CancelledError):
                await call
            assert front.generator.is_idle

    run(main())


def test_lengths_are_checked_with_the_right_numbers(run, open_front):
    async def main():
        async with open_front(max_model_len=64) as front:
            with pytest.raises(InvalidRequest, match=r"60 tokens leaves 4 of .* 64"):
                await front.generator.submit(GenerationRequest(token_ids=[1] * 60, max_tokens=5))
            for length in (64, 65, 100_000):
                with pytest.raises(InvalidRequest, match=f"{length} tokens"):
                    await front.generator.submit(GenerationRequest(token_ids=[1] * length))
            with pytest.raises(InvalidRequest, match="characters"):
                await front.generator.submit(ask("x" * 100_000))
            generation = await front.generator.submit(GenerationRequest(token_ids=[1] * 60))
            await collect(generation)
            assert front.engine.submits()[0].max_tokens == 4
            assert front.is_clean()

    run(main())


def test_a_tiny_temperature_is_greedy(run, open_front):
    async def main():
        async with open_front() as front:
            for temperature in (0, 1e-30, 5e-324, 0.5):
                await collect(
                    await front.generator.submit(ask(max_tokens=1, temperature=temperature))
                )
            sent = [submit.sampling.temperature for submit in front.engine.submits()]
            assert sent == [0.0, 0.0, 0.0, 0.5]

    run(main())


def test_a_prompt_arrives_as_its_ids(run, open_front):
    async def main():
        async with open_front() as front:
            await collect(await front.generator.submit(ask("hello", max_tokens=1)))
            [submit] = front.engine.submits()
            assert view_ids(submit.prompt).tolist() == front.tokenizer.encode_text("hello")

    run(main())


def test_readers_of_one_step_are_woken_a_few_in_a_turn_of_the_loop(run, open_front):
    """So that whoever comes meanwhile waits for a few of them, not for all."""
    num, turn, woken = 12, 0, list[int]()

    async def main():
        async with open_front() as front:
            front.engine.auto = False
            front.says("a")
            generations = [await front.generator.submit(ask(max_tokens=9)) for _ in range(num)]
            await front.engine.until(lambda: len(front.engine.waiting) == num)
            await front.step()  # the first token of each, whose end comes with the next
            for generation in generations:
                generation.take()

            async def read(generation: Generation) -> None:
                await anext(generation)
                woken.append(turn)

            def count() -> None:
                nonlocal turn
                turn += 1
                if len(woken) < num:
                    asyncio.get_running_loop().call_soon(count)

            reading = asyncio.gather(*map(read, generations))
            await asyncio.sleep(0)
            count()
            front.engine.step()
            await reading

            most = max(map(woken.count, woken))
            assert 1 < most <= 4

    run(main())
