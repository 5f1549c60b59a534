"""Streams that are dropped and gone on with, over Generate and Session."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from google.protobuf import duration_pb2

from cadenza.service.limits import Limits, ResumptionLimits
from cadenza.service.rpc.codec import BATCH_BYTES
from cadenza.service.rpc.resumable import read as read_backlog
from cadenza.service.stream_log import Entry
from cadenza.v1 import generation_pb2 as pb
from tests.service.manual_timers import ManualTimers
from tests.service.rpc.talking import Talk
from tests.service.waiting import until

NOT_FOUND, ALREADY_EXISTS, ABORTED, CANCELLED = 5, 6, 10, 1
INVALID_ARGUMENT, UNAVAILABLE = 3, 14


def generate(resume: pb.Resume | None = None, **fields: Any) -> pb.GenerateRequest:
    fields = {"text": "x", "max_tokens": 64, **fields}
    return pb.GenerateRequest(input=pb.GenerationInput(**fields), stream_id="s", resume=resume)


def submit(request_id: str, resume: pb.Resume | None = None, **more: Any) -> pb.Submit:
    given = pb.GenerationInput(text="x", max_tokens=64)
    return pb.Submit(request_id=request_id, input=given, stream_id="s", resume=resume, **more)


async def waiting(front) -> None:
    await until(lambda: front.generator.resumption.num_waiting == 1)


async def read(call, until_tokens: int | None = None) -> list[pb.Event]:
    """All events, or those until so many tokens have come."""
    events: list[pb.Event] = []
    async for response in call:
        events += response.events
        if until_tokens is not None and len(ids_of(events)) >= until_tokens:
            break
    return events


def ids_of(events: list[pb.Event], choice: int = 0) -> list[int]:
    parts = [event.tokens for event in events if event.HasField("tokens")]
    return [token for part in parts if part.choice == choice for token in part.token_ids]


async def refusal(call, told: list[pb.Event] | None = None) -> grpc.aio.AioRpcError:
    """What the call ends with, after events that `told` gets."""

    async def read_all() -> None:
        async for response in call:
            if told is not None:
                told.extend(response.events)

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await read_all()
    return caught.value


async def dropped(front, stub, num_tokens: int, **fields: Any) -> list[pb.Event]:
    """What came of a stream before its call was dropped."""
    front.engine.auto = False
    call = stub.Generate(generate(**fields))
    await front.engine.until(lambda: bool(front.engine.waiting))
    reading = asyncio.create_task(read(call, num_tokens))
    await front.step(num_tokens)
    events = await reading
    call.cancel()
    await waiting(front)
    return events


async def begun(front, stub, *others: pb.Submit) -> Talk:
    """A Session whose requests wait: "a", which is the stream, and these."""
    front.engine.auto = False
    talk = Talk(stub)
    await talk.send(submit("a"), *others)
    await front.engine.until(lambda: len(front.engine.waiting) == 1 + len(others))
    return talk


@pytest.mark.parametrize("in_session", [False, True])
async def test_a_backlog_larger_than_a_message_is_told_whole(serve_front, in_session: bool):
    async with serve_front() as (front, stub):
        await dropped(front, stub, 1)
        [stream] = front.generator.resumption._streams.values()
        text = "x" * 50_000
        first = stream.log.num_told + 1
        stream.tell(
            [
                Entry(
                    pb.Event(number=number, tokens=pb.Tokens(text=text)).SerializeToString(), (1,)
                )
                for number in range(first, first + 100)
            ]
        )
        front.engine.resume()
        resume = pb.Resume(after_event=first - 1)
        if in_session:
            talk = Talk(stub)
            await talk.send(submit("a", resume))
            assert (await talk.end_of("a")).HasField("finished")
            events = talk.of("a")
        else:
            events = await read(stub.Generate(generate(resume)))
        assert [event.tokens.text for event in events[:100]] == [text] * 100


async def test_a_long_backlog_is_read_in_parts():
    class Backlog:
        async def __aiter__(self) -> AsyncIterator[list[Entry]]:
            event = pb.Event(tokens=pb.Tokens(text="x" * 50_000))
            yield [Entry(event.SerializeToString(), ())] * 100

    batches = [events async for events in read_backlog(Backlog(), "a")]
    assert sum(map(len, batches)) == 100
    assert max(sum(map(len, events)) for events in batches) <= BATCH_BYTES


@pytest.mark.parametrize("way", ["event", "tokens", "both", "input"])
async def test_generate_goes_on_where_it_was_dropped(serve_front, way: str):
    async with serve_front() as (front, stub):
        events = await dropped(front, stub, 3)
        resume = {
            "event": pb.Resume(after_event=events[-1].number),
            "tokens": pb.Resume(tokens=[3]),
            "both": pb.Resume(after_event=events[-1].number, tokens=[3]),
            "input": pb.Resume(after_event=events[-1].number),
        }[way]
        front.engine.resume()
        request = pb.GenerateRequest(stream_id="s", resume=resume)
        rest = await read(stub.Generate(generate(resume) if way == "input" else request))

        again = await read(stub.Generate(generate()))
        assert events + rest == again
        assert [event.number for event in again] == [*range(1, len(again) + 1)]
        assert len(ids_of(again)) == 13
        assert again[-1].finished.usage.completion_tokens == 13
        assert len(front.engine.submits()) == 1
        assert not front.engine.cancels()


async def test_choices_go_on_where_each_was(serve_front):
    async with serve_front() as (front, stub):
        events = await dropped(front, stub, 2, n=3)
        front.engine.resume()
        tokens = [len(ids_of(events, choice)) for choice in range(3)]
        request = pb.GenerateRequest(stream_id="s", resume=pb.Resume(tokens=tokens))
        rest = await read(stub.Generate(request))
        for choice in range(3):
            assert len(ids_of(events + rest, choice)) == 13


async def test_a_session_goes_on_with_what_another_call_began(serve_front):
    async with serve_front() as (front, stub):
        events = await dropped(front, stub, 2)
        talk = Talk(stub)
        await talk.send(submit("again", pb.Resume(tokens=[2])))
        front.engine.resume()
        assert (await talk.end_of("again")).HasField("finished")
        assert len(ids_of(events) + talk.ids_of("again")) == 13
        assert talk.of("again")[0].number == events[-1].number + 1

        await talk.append("b", "again", text="y", max_tokens=1)
        assert (await talk.end_of("b")).HasField("finished")
        first, second = [len(each.prompt) // 4 for each in front.engine.submits()]
        assert second == first + 13 + 1, "the whole of it, not what this stream was told"


async def test_a_session_that_drops_leaves_its_stream(serve_front):
    async with serve_front() as (front, stub):
        plain = pb.Submit(request_id="plain", input=pb.GenerationInput(text="y", max_tokens=64))
        talk = await begun(front, stub, plain)
        await front.step(2)
        talk.call.cancel()
        await waiting(front)
        await front.engine.until(lambda: len(front.engine.cancels()) == 1)
        front.engine.resume()
        events = await read(stub.Generate(pb.GenerateRequest(stream_id="s", resume=pb.Resume())))
        assert len(ids_of(events)) == 13
        assert all(event.request_id == "" for event in events)


async def test_a_cancel_ends_a_stream_for_good(serve_front):
    async with serve_front() as (front, stub):
        talk = await begun(front, stub)
        await talk.send(pb.Cancel(request_id="a"))
        assert (await talk.end_of("a")).failed.code == CANCELLED
        await front.engine.until(lambda: bool(front.engine.cancels()))
        await talk.send(submit("b", pb.Resume()))
        failed = (await talk.end_of("b")).failed
        assert failed.code == NOT_FOUND
        assert "No stream s is known" in failed.message


async def test_a_second_reader_takes_over(serve_front):
    async with serve_front() as (front, stub):
        talk = await begun(front, stub)
        call = stub.Generate(generate(pb.Resume()))
        failed = (await talk.end_of("a")).failed
        assert (failed.code, failed.retryable) == (ABORTED, False)
        await talk.send(submit("b", pb.Resume()))
        assert (await refusal(call)).code() is grpc.StatusCode.ABORTED
        front.engine.resume()
        assert (await talk.end_of("b")).HasField("finished")
        assert len(talk.ids_of("b")) == 13


@pytest.mark.parametrize(
    ("request_", "code", "words"),
    [
        (generate(pb.Resume(after_event=99)), INVALID_ARGUMENT, "beyond event"),
        (generate(pb.Resume(tokens=[99])), INVALID_ARGUMENT, "resume is beyond 13"),
        (generate(pb.Resume(after_event=1, tokens=[9])), INVALID_ARGUMENT, "none of this stream's"),
        (generate(seed=5), ALREADY_EXISTS, "that of another request"),
        (generate(pb.Resume(), seed=5), ALREADY_EXISTS, "that of another request"),
        (generate(pb.Resume(), tenant="t"), NOT_FOUND, "No stream s is known"),
        (pb.GenerateRequest(stream_id="t", resume=pb.Resume()), NOT_FOUND, "No stream t is known"),
        (pb.GenerateRequest(resume=pb.Resume()), INVALID_ARGUMENT, "needs the stream_id"),
        (pb.GenerateRequest(stream_id="a/b"), INVALID_ARGUMENT, "stream_id must be 1 to 128"),
    ],
)
async def test_what_cannot_be_gone_on_with_is_refused_in_words(
    serve_front, request_: pb.GenerateRequest, code: int, words: str
):
    async with serve_front() as (_, stub):
        await read(stub.Generate(generate()))
        error = await refusal(stub.Generate(request_))
        assert error.code().value[0] == code
        assert words in error.details()

        talk = Talk(stub)
        await talk.send(
            pb.Submit(
                request_id="a",
                input=request_.input,
                stream_id=request_.stream_id if request_.HasField("stream_id") else None,
                resume=request_.resume if request_.HasField("resume") else None,
            )
        )
        failed = (await talk.end_of("a")).failed
        assert (failed.code, failed.message) == (code, error.details())


@pytest.mark.parametrize(("field", "value"), [("echo", True), ("prompt_logprobs", 1)])
async def test_what_is_as_long_as_the_prompt_is_not_kept(serve_front, field: str, value: Any):
    async with serve_front() as (_, stub):
        error = await refusal(stub.Generate(generate(**{field: value})))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_where_no_streams_are_kept_resumption_is_refused_for_good(serve_front):
    async with serve_front(limits=Limits(resumption=ResumptionLimits(max_streams=0))) as (_, stub):
        error = await refusal(stub.Generate(generate()))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert error.details().startswith("Resumption is switched off here")
        talk = Talk(stub)
        await talk.send(submit("a"))
        failed = (await talk.end_of("a")).failed
        assert (failed.code, failed.field) == (INVALID_ARGUMENT, "stream_id")
        assert not failed.retryable


async def test_behind_the_end_nothing_is_left(serve_front):
    async with serve_front() as (_, stub):
        events = await read(stub.Generate(generate()))
        resume = pb.Resume(after_event=events[-1].number)
        assert await read(stub.Generate(generate(resume))) == []
        talk = Talk(stub)
        await talk.send(submit("a", resume))
        failed = (await talk.end_of("a")).failed
        assert (failed.code, failed.field) == (INVALID_ARGUMENT, "resume")


async def test_the_clients_own_credit_is_kept_to_over_drops(serve_front):
    async with serve_front() as (front, stub):
        talk = Talk(stub)
        await talk.send(submit("a", credit=3))
        await until(lambda: any(row.is_parked for row in front.engine.running.values()))
        talk.call.cancel()
        await waiting(front)
        assert front.engine.generated == 3

        talk = Talk(stub)
        await talk.send(submit("b", pb.Resume(), credit=2))
        await until(lambda: front.engine.generated == 5)
        await talk.send(pb.Credit(request_id="b", tokens=100))
        assert (await talk.end_of("b")).HasField("finished")
        assert len(talk.ids_of("b")) == 13


async def test_a_half_close_leaves_credit_that_another_session_may_grant(serve_front):
    """A client that is gone looks like one that has half-closed."""
    async with serve_front() as (front, stub):
        first = Talk(stub)
        await first.send(submit("a", credit=3))
        await first.submit("plain", text="y", max_tokens=5)
        await until(lambda: any(row.is_parked for row in front.engine.running.values()))
        await first.call.done_writing()
        await first.end_of("plain")
        assert len(first.ids_of("a")) <= 3

        second = Talk(stub)
        await second.send(submit("b", pb.Resume(), credit=2))
        assert (await first.end_of("a")).failed.code == ABORTED
        assert await first.call.read() is grpc.aio.EOF
        await until(lambda: front.engine.generated == 5 + len(first.ids_of("plain")))
        await second.send(pb.Credit(request_id="b", tokens=100))
        assert (await second.end_of("b")).HasField("finished")
        assert len(second.ids_of("b")) == 13


async def test_a_deadline_goes_on_and_may_be_set_anew(serve_front):
    async with serve_front() as (front, stub):
        front.engine.auto = False
        call = stub.Generate(generate(), timeout=1000)
        await front.engine.until(lambda: bool(front.engine.waiting))
        [row] = front.engine.waiting.values()
        assert row.deadline_s is not None
        call.cancel()
        await waiting(front)
        assert row.deadline_s is not None

        talk = Talk(stub)
        later_s = row.deadline_s
        await talk.send(submit("a", pb.Resume(), timeout=duration_pb2.Duration()))
        await front.engine.until(lambda: row.deadline_s < later_s)
        front.engine.resume()
        failed = (await talk.end_of("a")).failed
        assert failed.code == grpc.StatusCode.DEADLINE_EXCEEDED.value[0]


async def test_what_nobody_reads_is_bounded_and_parked(serve_front):
    limits = Limits(resumption=ResumptionLimits(max_bytes=64 << 10))
    async with serve_front(limits=limits, max_model_len=4096) as (front, stub):
        front.engine.reply = lambda submit: [5 + i % 60 for i in range(1000)]
        call = stub.Generate(generate(max_tokens=1000, ignore_eos=True))
        first = await call.read()
        call.cancel()
        await until(lambda: any(row.is_parked for row in front.engine.running.values()))
        [stream] = front.generator.resumption._streams.values()
        assert stream.log.num_bytes <= 64 << 10
        assert front.engine.generated < 200
        events = [*first.events]
        resume = pb.Resume(after_event=events[-1].number)
        events += await read(stub.Generate(pb.GenerateRequest(stream_id="s", resume=resume)))
        assert len(ids_of(events)) == 1000
        assert stream.log.num_bytes <= 64 << 10
        from_the_start = pb.GenerateRequest(stream_id="s", resume=pb.Resume())
        error = await refusal(stub.Generate(from_the_start))
        assert error.code() is grpc.StatusCode.OUT_OF_RANGE


async def test_a_lost_engine_is_told_behind_what_came(serve_front):
    async with serve_front() as (front, stub):
        await dropped(front, stub, 1)
        await front.step()
        front.engine.die()
        await front.client.lost()
        for _ in range(2):
            call = stub.Generate(pb.GenerateRequest(stream_id="s", resume=pb.Resume(tokens=[1])))
            events: list[pb.Event] = []
            assert (await refusal(call, events)).code() is grpc.StatusCode.UNAVAILABLE
            assert len(ids_of(events)) == 1
        front.engine.running.clear()


async def test_beside_its_events_a_stream_keeps_tokens_until_it_fails(serve_front):
    async with serve_front() as (front, stub):
        await read(stub.Generate(generate()))
        [stream] = front.generator.resumption._streams.values()
        [submitted] = front.engine.submits()
        assert stream.memo.num_tokens == len(submitted.prompt) // 4 + 13

        call = stub.Generate(pb.GenerateRequest(input=generate().input, stream_id="t"))
        front.engine.auto = False
        await front.engine.until(lambda: bool(front.engine.waiting))
        await front.step()
        [_, stream] = front.generator.resumption._streams.values()
        assert stream.memo is not None
        front.engine.fail("no luck", max(front.engine.running))
        assert (await refusal(call)).code() is grpc.StatusCode.INTERNAL
        assert stream.memo is None


async def test_a_stream_that_nobody_goes_on_with_ends_with_its_grace(serve_front):
    timers = ManualTimers()
    async with serve_front(later=timers) as (front, stub):
        await dropped(front, stub, 1)
        timers.advance(29)
        assert not front.engine.cancels()
        timers.advance(1)
        await front.engine.until(lambda: bool(front.engine.cancels()))
        error = await refusal(stub.Generate(generate(pb.Resume())))
        assert error.code() is grpc.StatusCode.NOT_FOUND


async def test_other_requests_have_no_numbers(serve_front, request_of):
    async with serve_front() as (_, stub):
        events = await read(stub.Generate(request_of("x")))
        assert {event.number for event in events} == {0}


async def test_http_and_grpc_streams_do_not_mix(serve_front):
    async with serve_front() as (front, stub):
        await read(stub.Generate(generate()))
        assert front.generator.metrics.streams_resumed == {"http": 0, "grpc": 0}
        [stream] = front.generator.resumption._streams.values()
        stream.protocol = "http"
        error = await refusal(stub.Generate(generate(pb.Resume())))
        assert error.code() is grpc.StatusCode.ALREADY_EXISTS
        assert "a stream over HTTP" in error.details()
