"""Generate over a real channel: its messages, its statuses and its ends."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from structlog.testing import capture_logs

from cadenza.service.errors import GenerationFailed, InvalidRequest
from cadenza.service.events import Delta, PositionLogprobs, TokenLogprob
from cadenza.service.rpc import generate
from cadenza.service.tracing import caller
from cadenza.v1 import generation_pb2 as pb
from tests.service.rpc.talking import Talk


async def collect(call, responses):
    async for response in call:
        responses.append(response)


async def failure(call, responses=None):
    """The error that a call ends with, after `responses`."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await collect(call, [] if responses is None else responses)
    return caught.value


def details(error, kind):
    """The error's rich details of one kind."""
    status = rpc_status.from_call(error)
    found = []
    for packed in status.details:
        message = kind()
        if packed.Unpack(message):
            found.append(message)
    return found


async def test_a_request_is_told_from_accepted_to_finished(generator, serve, request_of):
    generator.on_submit = lambda generation: generation.say("Hello", " world")
    async with serve() as served:
        responses = [response async for response in served.stub.Generate(request_of("hi"))]
    events = [event for response in responses for event in response.events]
    kinds = [event.WhichOneof("event") for event in events]

    assert kinds == ["accepted", "notice", "tokens", "tokens", "choice_finished", "finished"]
    assert events[0].accepted == pb.Accepted(
        id="gen-hi", model="fake", prompt_tokens=7, num_choices=1, queue_position=2
    )
    assert "".join(event.tokens.text for event in events) == "Hello world"
    assert events[-1].finished.usage == pb.Usage(
        prompt_tokens=7, completion_tokens=2, cached_tokens=3
    )


async def test_the_terminal_event_comes_with_the_choices_end(generator, serve, request_of):
    generator.on_submit = lambda generation: generation.say("Hello")
    async with serve() as served:
        responses = [response async for response in served.stub.Generate(request_of("hi"))]

    last = [event.WhichOneof("event") for event in responses[-1].events]
    assert last[-2:] == ["choice_finished", "finished"]


async def test_finished_waits_for_every_choice_and_adds_their_tokens(generator, serve, request_of):
    def script(generation):
        generation.end(choice=1, completion_tokens=4)
        generation.end(choice=0, completion_tokens=6)

    generator.on_submit = script
    async with serve() as served:
        responses = [response async for response in served.stub.Generate(request_of("hi", n=2))]
    events = [event for response in responses for event in response.events]

    assert [event.WhichOneof("event") for event in events] == [
        "accepted",
        "choice_finished",
        "choice_finished",
        "finished",
    ]
    assert [event.choice_finished.choice for event in events[1:3]] == [1, 0]
    assert events[-1].finished.usage.completion_tokens == 10


async def test_a_finished_generation_is_not_cancelled(generator, serve, request_of):
    generator.on_submit = lambda generation: generation.say("Hello")
    async with serve() as served:
        async for _ in served.stub.Generate(request_of("hi")):
            pass

    assert not generator.generations["hi"].cancelled.is_set()


async def test_an_unexpected_exception_is_logged_and_not_told(generator, serve, request_of):
    generator.errors["hi"] = ValueError("secret path")
    with capture_logs() as logs:
        async with serve() as served:
            error = await failure(served.stub.Generate(request_of("hi")))

    assert error.code() is grpc.StatusCode.INTERNAL
    assert error.details() == "Something went wrong in the server."
    assert [log["event"] for log in logs] == ["call_failed"]


async def test_a_message_that_quotes_a_long_field_still_arrives(generator, serve, request_of):
    message = "no model " + "模" * 100_000
    generator.errors["hi"] = InvalidRequest(message, field="model")
    async with serve() as served:
        error = await failure(served.stub.Generate(request_of("hi")))

    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert error.details().startswith("no model 模")
    assert details(error, error_details_pb2.BadRequest)


async def test_a_request_without_input_reaches_validation(generator, serve):
    generator.errors[""] = InvalidRequest("a prompt is required", field="prompt")
    async with serve() as served:
        error = await failure(served.stub.Generate(pb.GenerateRequest()))

    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_cancelling_the_call_cancels_the_generation(generator, serve, request_of):
    async with serve() as served:
        call = served.stub.Generate(request_of("hi"))
        await call.read()
        call.cancel()

        await generator.generations["hi"].cancelled.wait()


async def test_cancelling_reaches_a_request_that_waits_for_the_engine(
    generator, serve, request_of, monkeypatch
):
    entered, left = asyncio.Event(), asyncio.Event()

    async def submit(request):
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            left.set()

    monkeypatch.setattr(generator, "submit", submit)
    async with serve() as served:
        call = served.stub.Generate(request_of("hi"))
        await entered.wait()
        call.cancel()

        await left.wait()


async def test_the_deadline_cancels_the_generation(generator, serve, request_of):
    async with serve() as served:
        error = await failure(served.stub.Generate(request_of("hi"), timeout=0.3))

        assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await generator.generations["hi"].cancelled.wait()


async def test_a_message_too_large_is_refused_and_the_server_lives(generator, serve, request_of):
    generator.on_submit = lambda generation: generation.say("Hello")
    async with serve([("grpc.max_send_message_length", -1)]) as served:
        error = await failure(served.stub.Generate(request_of("x" * (5 << 20))))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED

        responses = [response async for response in served.stub.Generate(request_of("hi"))]
    assert responses[-1].events[-1].HasField("finished")


async def test_a_large_message_within_the_limit_is_served(generator, serve, request_of):
    generator.on_submit = lambda generation: generation.say("Hello")
    prompt = "x" * (3 << 20)
    async with serve() as served:
        responses = [response async for response in served.stub.Generate(request_of(prompt))]

    assert responses[-1].events[-1].HasField("finished")
    assert generator.requests[0].text == prompt


@pytest.mark.parametrize("call", ["Generate", "Session"])
async def test_a_backlog_with_logprobs_fits_the_default_client(
    generator, serve, request_of, submit_of, call
):
    token = TokenLogprob(1000, " token", b" token", -1.0)
    num_tokens = 10_000

    def script(generation):
        positions = [PositionLogprobs(sampled=token, top=[token] * 20)] * num_tokens
        ids = range(num_tokens)
        generation.feed(Delta(choice=0, text="all", token_ids=ids, logprobs=positions))
        generation.end()

    generator.on_submit = script
    async with serve() as served:
        if call == "Generate":
            stream = served.stub.Generate(request_of("hi"))
        else:
            stream = served.stub.Session()
            await stream.write(submit_of("hi"))
            await stream.done_writing()
        responses = [response async for response in stream]
    tokens = [event.tokens for response in responses for event in response.events]

    assert [id for message in tokens for id in message.token_ids] == list(range(num_tokens))
    assert sum(len(message.logprobs) for message in tokens) == num_tokens
    assert "".join(message.text for message in tokens) == "all"
    assert sum(response.ByteSize() for response in responses) > 4 << 20


async def test_an_echo_of_a_long_prompt_to_many_choices_reaches_a_default_client(serve_front):
    """All of it together is more than a message may hold."""
    async with serve_front(max_model_len=300_000) as (front, stub):
        front.says("ab")
        talk = Talk(stub)
        text = "x" * 262_144
        await talk.submit("a", text=text, echo=True, n=16, max_tokens=1)
        assert (await talk.end_of("a")).HasField("finished")
        assert talk.text_of("a").count("x") == 16 * len(text)


async def test_bytes_that_are_no_message_are_refused_and_the_server_lives(
    generator, serve, request_of
):
    generator.on_submit = lambda generation: generation.say("Hello")
    async with serve() as served:
        call = served.channel.unary_stream("/cadenza.v1.GenerationService/Generate")(b"\xff\xff")
        error = await failure(call)
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT

        responses = [response async for response in served.stub.Generate(request_of("hi"))]
    assert responses[-1].events[-1].HasField("finished")


async def test_an_unknown_method_is_unimplemented(serve):
    async with serve() as served:
        call = served.channel.unary_unary("/cadenza.v1.GenerationService/Guess")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(b"")

    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_the_trace_context_of_a_call_is_that_of_its_request(generator, serve, request_of):
    seen = []

    def on_submit(generation):
        seen.append(caller())
        generation.say("x")

    generator.on_submit = on_submit
    metadata = (("traceparent", "00-abc"), ("x-more", "1"), ("x-bin", b"\x00"))
    async with serve() as served:
        await collect(served.stub.Generate(request_of("hi"), metadata=metadata), [])
        await collect(served.stub.Generate(request_of("hi")), [])

    assert seen == [{"traceparent": "00-abc"}, {}]


class Client:
    """Takes messages while it reads."""

    def __init__(self) -> None:
        self.reads = asyncio.Event()
        self.events: list[pb.Event] = []

    async def write(self, message: bytes) -> None:
        await self.reads.wait()
        self.events += pb.GenerateResponse.FromString(message).events

    @property
    def text(self) -> str:
        return "".join(event.tokens.text for event in self.events)


async def begun(front, request, client: Client) -> asyncio.Task[None]:
    """A call whose request waits for the engine's steps."""
    front.engine.auto = False
    call = asyncio.create_task(
        generate.generate(front.generator, request, client.write, time_left_s=None)
    )
    await front.engine.until(lambda: bool(front.engine.waiting))
    return call


async def test_who_does_not_read_has_little_kept_and_gets_all_in_order(
    open_front, request_of, monkeypatch
):
    monkeypatch.setattr(generate, "LIMIT_BYTES", 100)
    async with open_front() as front:
        front.says("a long answer, token after token")
        client = Client()
        call = await begun(front, request_of("x", max_tokens=200), client)
        await front.step(20)
        client.reads.set()
        front.engine.resume()
        await call

        assert client.text == "a long answer, token after token"
        assert max(len(event.tokens.token_ids) for event in client.events) > 5  # merged
        assert client.events[-1].HasField("finished")
        assert front.generator.is_idle


async def test_what_came_before_a_failure_is_written_before_it_is_raised(open_front, request_of):
    async with open_front() as front:
        front.says("lost at last")
        client = Client()
        call = await begun(front, request_of("x", max_tokens=200), client)
        await front.step(4)
        front.engine.die()
        await front.client.lost()
        client.reads.set()

        with pytest.raises(GenerationFailed):
            await call
        assert client.text == "lost"
