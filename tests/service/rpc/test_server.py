"""The whole server over a real channel: streams, health, reflection, binding and stopping."""

from __future__ import annotations

import asyncio
import socket

import grpc
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from cadenza.service.events import Delta
from cadenza.service.rpc import GrpcServer, codec, wire_format
from cadenza.v1 import generation_pb2 as pb

SERVICE = "cadenza.v1.GenerationService"
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


async def events_until(call, count: int) -> list[pb.Event]:
    """The stream's events up to at least `count` of them."""
    events: list[pb.Event] = []
    while len(events) < count:
        response = await call.read()
        assert response is not grpc.aio.EOF
        events += response.events
    return events


def kinds(events) -> list[str]:
    return [event.WhichOneof("event") for event in events]


async def test_a_session_serves_many_requests_to_ok(generator, serve, submit_of):
    names = [str(number) for number in range(20)]
    generator.on_submit = lambda generation: generation.say("Hello")
    async with serve() as served:
        call = served.stub.Session()
        for name in names:
            await call.write(submit_of(name))
        await call.done_writing()
        events = [event async for response in call for event in response.events]
        code = await call.code()

    assert code is grpc.StatusCode.OK
    finished = [event.request_id for event in events if event.HasField("finished")]
    assert sorted(finished) == sorted(names)
    for name in names:
        mine = [event for event in events if event.request_id == name]
        assert kinds(mine) == ["accepted", "notice", "tokens", "choice_finished", "finished"]


async def test_half_close_of_an_idle_session_is_ok(serve):
    async with serve() as served:
        call = served.stub.Session()
        await call.done_writing()

        assert await call.read() is grpc.aio.EOF
        assert await call.code() is grpc.StatusCode.OK


async def test_half_close_after_a_token_lets_the_request_finish(generator, serve, submit_of):
    async with serve() as served:
        call = served.stub.Session()
        await call.write(submit_of("a"))
        generation = await generator.generation("a")
        generation.feed(Delta(choice=0, text="x", token_ids=[1]))
        await events_until(call, 2)
        await call.done_writing()
        generation.end()

        assert kinds(await events_until(call, 2)) == ["choice_finished", "finished"]
        assert await call.read() is grpc.aio.EOF
        assert await call.code() is grpc.StatusCode.OK


async def test_cancelling_a_session_cancels_every_generation(generator, serve, submit_of):
    async with serve() as served:
        call = served.stub.Session()
        await call.write(submit_of("a"))
        await call.write(submit_of("b"))
        await events_until(call, 2)
        call.cancel()

        for generation in generator.generations.values():
            await generation.cancelled.wait()


async def test_a_lost_connection_cancels_every_generation(generator, serve, submit_of):
    async with serve() as served:
        call = served.stub.Session()
        await call.write(submit_of("a"))
        await events_until(call, 1)
        await served.channel.close()

        await generator.generations["a"].cancelled.wait()


async def test_bytes_that_are_no_message_end_the_session(generator, serve, submit_of):
    async with serve() as served:
        call = served.channel.stream_stream(f"/{SERVICE}/Session")()
        await call.write(submit_of("a").SerializeToString())
        await call.read()
        await call.write(b"\xff\xff")
        await generator.generations["a"].cancelled.wait()

        assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_session_that_fails_while_its_first_message_is_being_sent_has_an_end(
    serve, cancel_of
):
    """A status must not be sent then: gRPC would refuse it, and the client wait for ever."""
    async with serve() as served:
        for _ in range(30):
            call = served.channel.stream_stream(f"/{SERVICE}/Session")()
            await call.write(cancel_of("nobody").SerializeToString())  # is answered
            await call.write(b"\xff\xff")
            await call.read()
            assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_an_oversize_message_ends_its_session_alone(generator, serve, submit_of):
    async with serve([("grpc.max_send_message_length", -1)]) as served:
        other = served.stub.Session()
        await other.write(submit_of("other"))
        await events_until(other, 1)
        call = served.stub.Session()
        await call.write(submit_of("a", "x" * (5 << 20)))
        assert await call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED

        generator.generations["other"].say("x")
        assert kinds(await events_until(other, 4))[-1] == "finished"


WINDOW = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 65535)]


async def test_the_server_stops_sending_to_a_client_that_does_not_read(generator, serve, submit_of):
    """What waits for it in the server's hands is bounded by a buffer and the flow control."""
    num_batches = 4000
    async with serve(WINDOW) as served:
        call = served.stub.Session()
        await call.write(submit_of("a"))
        generation = await generator.generation("a")
        for _ in range(num_batches):
            generation.feed(Delta(choice=0, text="x" * 1000, token_ids=[1]))
        generation.end()
        before = -1
        while generation.num_pulled != before or before <= 100:  # a slow start is no end
            before = generation.num_pulled
            await asyncio.sleep(0.1)
        # 2 x 256 KiB in our hands, 64 KiB of window and what the transports hold.
        assert before < 1500

        other = served.stub.Session()
        await other.write(submit_of("b"))
        (await generator.generation("b")).say("x")
        assert kinds(await events_until(other, 5))[-1] == "finished"
        await call.done_writing()
        events = [event async for response in call for event in response.events]
    assert sum(len(event.tokens.text) for event in events) == 1000 * num_batches


@pytest.mark.parametrize("method", ["Generate", "Session"])
async def test_a_call_that_cannot_be_written_to_is_cancelled(
    generator, serve, request_of, submit_of, method
):
    async with serve(WINDOW, stall_s=1.0) as served:
        if method == "Generate":
            call = served.stub.Generate(request_of("a"))
        else:
            call = served.stub.Session()
            await call.write(submit_of("a"))
        generation = await generator.generation("a")
        for _ in range(4000):
            generation.feed(Delta(choice=0, text="x" * 1000, token_ids=[1]))
        await generation.cancelled.wait()

        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await events_until(call, 4001)
        assert caught.value.code() is grpc.StatusCode.CANCELLED


@pytest.fixture
def large_first(monkeypatch) -> None:
    """Let what a request is told first be more than a window."""
    large = wire_format.event(pb.Event(tokens=pb.Tokens(text="x" * 2_000_000)))
    monkeypatch.setattr(codec, "accepted", lambda *_: large)


async def test_a_call_whose_first_write_stalls_is_told_whenever_its_client_reads(
    generator, serve, request_of, large_first
):
    async with serve(WINDOW, stall_s=0.1) as served:
        call = served.stub.Generate(request_of("a"))
        await (await generator.generation("a")).cancelled.wait()
        await asyncio.sleep(0.2)  # it does not read for longer yet
        async with asyncio.timeout(10):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await events_until(call, 2)
        assert caught.value.code() is grpc.StatusCode.CANCELLED


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_a_first_write_that_stalls_does_not_hold_the_server(
    generator, serve, request_of, large_first, is_cancelled
):
    async with serve(WINDOW, stall_s=0.2) as served:
        call = served.stub.Generate(request_of("a"))
        await (await generator.generation("a")).cancelled.wait()
        if is_cancelled:
            call.cancel()
        async with asyncio.timeout(10):
            await served.server.stop(10 if is_cancelled else 0.05)
        call.cancel()


async def test_a_call_that_cannot_be_told_its_end_does_not_hold_the_server(
    generator, serve, request_of
):
    async with serve(WINDOW, stall_s=0.2) as served:
        call = served.stub.Generate(request_of("a"))
        generation = await generator.generation("a")
        for _ in range(4000):
            generation.feed(Delta(choice=0, text="x" * 1000, token_ids=[1]))
        await generation.cancelled.wait()
        await served.server.stop(0.05)
        call.cancel()


async def test_a_long_silence_of_the_engine_is_no_stall(generator, serve, request_of):
    async with serve(stall_s=0.05) as served:
        call = served.stub.Generate(request_of("a"))
        await call.read()
        await asyncio.sleep(0.3)
        generator.generations["a"].say("x")

        assert kinds(await events_until(call, 4))[-1] == "finished"
        assert await call.code() is grpc.StatusCode.OK


async def health_of(channel, service: str) -> int:
    stub = health_pb2_grpc.HealthStub(channel)
    response = await stub.Check(health_pb2.HealthCheckRequest(service=service))
    return response.status


@pytest.mark.parametrize("service", ["", SERVICE])
async def test_health_follows_readiness(serve, service):
    async with serve() as served:
        assert await health_of(served.channel, service) == NOT_SERVING
        await served.server.set_ready(True)
        assert await health_of(served.channel, service) == SERVING
        await served.server.set_ready(False)
        assert await health_of(served.channel, service) == NOT_SERVING


async def test_a_stopping_server_is_not_serving_and_refuses_requests(generator, serve, request_of):
    async with serve() as served:
        await served.server.set_ready(True)
        call = served.stub.Generate(request_of("a"))
        await call.read()
        stopping = asyncio.create_task(served.server.stop(10))
        while await health_of(served.channel, "") != NOT_SERVING:
            pass
        await served.server.set_ready(True)
        assert await health_of(served.channel, SERVICE) == NOT_SERVING
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await served.stub.Generate(request_of("b")).read()
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE

        generator.generations["a"].say("x")
        assert kinds(await events_until(call, 4))[-1] == "finished"
        assert await call.code() is grpc.StatusCode.OK
        await stopping


async def test_a_session_is_drained_when_the_server_stops(generator, serve, submit_of):
    async with serve() as served:
        call = served.stub.Session()
        await call.write(submit_of("a"))
        await events_until(call, 1)
        stopping = asyncio.create_task(served.server.stop(10))
        generator.generations["a"].say("x")
        assert kinds(await events_until(call, 4))[-1] == "finished"
        assert await call.code() is grpc.StatusCode.UNAVAILABLE
        await stopping


async def test_stop_cancels_what_outlives_the_grace(generator, serve, request_of, submit_of):
    async with serve() as served:
        generate = served.stub.Generate(request_of("a"))
        await generate.read()
        session = served.stub.Session()
        await session.write(submit_of("b"))
        await events_until(session, 1)
        await served.server.stop(0.05)

        assert generator.generations["a"].cancelled.is_set()
        assert generator.generations["b"].cancelled.is_set()
        assert await generate.code() is grpc.StatusCode.UNAVAILABLE
        assert await session.code() is grpc.StatusCode.UNAVAILABLE


async def test_stop_waits_for_cleanup(generator, serve, request_of, monkeypatch):
    entered, cleaned = asyncio.Event(), asyncio.Event()

    async def submit(request):
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.2)
            cleaned.set()

    monkeypatch.setattr(generator, "submit", submit)
    async with serve() as served:
        call = served.stub.Generate(request_of("a"))
        await entered.wait()
        call.cancel()
        await served.server.stop(5)

        assert cleaned.is_set()


async def test_stop_waits_for_the_cleanup_of_what_it_cancels(
    generator, serve, request_of, monkeypatch
):
    entered, cleaned = asyncio.Event(), asyncio.Event()

    async def submit(request):
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.2)
            cleaned.set()

    monkeypatch.setattr(generator, "submit", submit)
    async with serve() as served:
        call = served.stub.Generate(request_of("a"))
        await entered.wait()
        await served.server.stop(0.05)

        assert cleaned.is_set()
        assert await call.code() is grpc.StatusCode.UNAVAILABLE


async def test_calls_that_end_in_time_keep_their_status(generator, serve, request_of):
    names = [str(number) for number in range(50)]
    async with serve() as served:
        calls = [served.stub.Generate(request_of(name)) for name in names]
        await asyncio.gather(*(call.read() for call in calls))
        stopping = asyncio.create_task(served.server.stop(10))
        for name in names:
            generator.generations[name].say("x")
        for call in calls:
            assert kinds(await events_until(call, 4))[-1] == "finished"
        codes = [await call.code() for call in calls]
        await stopping

    assert set(codes) == {grpc.StatusCode.OK}


async def test_a_watcher_of_health_does_not_hold_the_server(serve):
    async with serve() as served:
        watch = health_pb2_grpc.HealthStub(served.channel).Watch(
            health_pb2.HealthCheckRequest(service="")
        )
        await watch.read()
        async with asyncio.timeout(5):
            await served.server.stop(60)


async def test_a_second_stop_shortens_the_first(generator, serve, request_of):
    async with serve() as served:
        call = served.stub.Generate(request_of("a"))
        await call.read()
        first = asyncio.create_task(served.server.stop(60))
        await asyncio.sleep(0)
        await served.server.stop(0)
        await first

        assert generator.generations["a"].cancelled.is_set()


async def test_a_server_that_never_started_can_be_stopped(generator):
    await GrpcServer(generator).stop(1)


async def test_two_servers_in_turn_on_one_port(generator):
    server = GrpcServer(generator, port=0)
    port = await server.start()
    await server.stop(0)
    second = GrpcServer(generator, port=port)

    assert await second.start() == port
    await second.stop(0)


async def test_a_port_of_another_grpc_server_is_refused(generator, serve):
    async with serve() as served:
        with pytest.raises(OSError, match=rf"127\.0\.0\.1:{served.port}.*in use"):
            await GrpcServer(generator, port=served.port).start()


async def test_a_port_of_another_program_is_refused(generator):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(OSError, match=f"gRPC cannot listen on localhost:{port}: .*in use"):
            await GrpcServer(generator, host="localhost", port=port).start()


async def test_a_host_that_does_not_exist_is_refused(generator):
    with pytest.raises(OSError, match=r"no-such-host\.invalid"):
        await GrpcServer(generator, host="no-such-host.invalid").start()


async def test_a_client_made_of_reflection_alone_can_hold_a_session(generator, serve):
    generator.on_submit = lambda generation: generation.say("Hello", " world")
    async with serve() as served:
        sent, received, services = await asyncio.to_thread(reflected, served.port)
        call = served.channel.stream_stream(
            f"/{SERVICE}/Session",
            request_serializer=sent.SerializeToString,
            response_deserializer=received.FromString,
        )()
        action = sent()
        action.submit.request_id = "a"
        action.submit.input.text = "hi"
        await call.write(action)
        await call.done_writing()
        events = [event async for response in call for event in response.events]

    assert {SERVICE, "grpc.health.v1.Health"} <= set(services)
    assert sent is not pb.SessionRequest
    assert "".join(event.tokens.text for event in events) == "Hello world"
    assert events[-1].finished.usage.completion_tokens == 2


def reflected(port: int) -> tuple[type, type, list[str]]:
    """Session's request and response classes, and all services, as the server describes them."""
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        service = DescriptorPool(database).FindServiceByName(SERVICE)
        session = service.methods_by_name["Session"]
        assert session.client_streaming
        assert session.server_streaming
        classes = GetMessageClass(session.input_type), GetMessageClass(session.output_type)
        return *classes, list(database.get_services())
