"""What one connection gets: sizes, streams, pings, an age, and an end when its client is gone."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from types import SimpleNamespace

import grpc
import pytest
from grpc._cython import cygrpc
from structlog.testing import capture_logs

from cadenza.service.rpc import GrpcServer, channelz
from cadenza.service.rpc.connections import (
    ANY_AGE,
    MAX_MESSAGE_BYTES,
    MAX_STREAMS,
    ConnectionAge,
    server_options,
)
from cadenza.v1 import generation_pb2 as pb
from tests.service.rpc import http2
from tests.service.rpc.talking import Talk
from tests.service.waiting import until


async def first(connection: http2.Connection, kind: int, flags: int = 0) -> http2.Frame:
    async for frame in connection.frames():
        if (frame.kind, frame.flags) == (kind, flags):
            return frame
    raise AssertionError("the server has closed the connection")


async def test_a_connection_may_have_so_many_calls(serve):
    async with serve() as served, http2.connect(served.port) as connection:
        settings = (await first(connection, http2.SETTINGS)).settings

        assert settings[http2.MAX_CONCURRENT_STREAMS] == MAX_STREAMS


async def test_nobody_is_cut_off_for_pings(serve):
    async with serve() as served, http2.connect(served.port) as connection:
        num = 200
        for number in range(num):
            connection.send(http2.PING, number.to_bytes(8, "big"))
        answered = []
        async for frame in connection.frames():
            assert frame.kind != http2.GOAWAY
            if frame.kind == http2.PING and frame.flags & http2.ACK:
                answered.append(int.from_bytes(frame.payload, "big"))
            if len(answered) == num:
                break

        assert answered == [*range(num)]


async def test_connections_are_counted_with_calls_and_without(serve):
    async with serve() as served, serve() as other:
        assert served.server.num_connections == 0
        await served.channel.channel_ready()
        async with http2.connect(served.port), http2.connect(other.port) as connection:
            await first(connection, http2.SETTINGS)
            await until(lambda: served.server.num_connections == 2)
            assert other.server.num_connections == 1
        await until(lambda: served.server.num_connections == 1)
        await served.channel.close()
        await until(lambda: served.server.num_connections == 0)


async def test_more_connections_than_are_told_at_once_are_counted(serve, monkeypatch):
    monkeypatch.setattr(channelz, "_PAGE", 2)
    async with serve() as served, AsyncExitStack() as connections:
        for num in range(1, 6):
            await connections.enter_async_context(http2.connect(served.port))
            await until(lambda num=num: served.server.num_connections == num)


@pytest.fixture
def core(monkeypatch) -> SimpleNamespace:
    """gRPC's core as the counter asks it."""
    core = SimpleNamespace(
        channelz_get_servers=cygrpc.channelz_get_servers,
        channelz_get_server_sockets=cygrpc.channelz_get_server_sockets,
    )
    monkeypatch.setattr(channelz, "_core", lambda: core)
    return core


async def test_where_the_core_tells_nothing_connections_are_not_counted(serve, core):
    del core.channelz_get_servers
    with capture_logs() as logs:
        async with serve() as served:
            await served.channel.channel_ready()
            assert [served.server.num_connections for _ in range(2)] == [None, None]

    assert [log["event"] for log in logs] == ["grpc connections are not counted"]


@pytest.mark.parametrize(
    "page",
    [
        lambda *_: b"no JSON",
        lambda *_: b"{}",
        lambda *_: b'{"socketRef": [{"socketId": "3"}, {"socketId": "5"}]}',
    ],
)
async def test_what_the_core_tells_otherwise_or_for_ever_is_logged_once(serve, core, page):
    core.channelz_get_server_sockets = page
    with capture_logs() as logs:
        async with serve() as served:
            assert [served.server.num_connections for _ in range(2)] == [None, None]

    assert [log["event"] for log in logs] == ["grpc connections are not counted"]


async def test_a_server_that_does_not_serve_has_no_connections(generator):
    server = GrpcServer(generator, port=0)
    assert server.num_connections == 0
    await server.start()
    await server.stop(0)
    assert server.num_connections == 0


async def test_a_connection_of_age_is_told_to_go(serve):
    age = ConnectionAge(max_s=0.05)
    async with serve(connection_age=age) as served, http2.connect(served.port) as connection:
        assert (await first(connection, http2.GOAWAY)).goaway_code == 0


async def test_what_runs_on_a_connection_of_age_goes_on_and_new_calls_get_another(
    generator, serve, submit_of
):
    age = ConnectionAge(max_s=0.05)
    async with serve(connection_age=age) as served:
        talk = Talk(served.stub)
        await talk.submit("old", text="old")
        old = await generator.generation("old")
        state = served.channel.get_state()
        while state is grpc.ChannelConnectivity.READY:  # until the connection is told to go
            await served.channel.wait_for_state_change(state)
            state = served.channel.get_state()
        other = Talk(served.stub)
        await other.submit("new", text="new")
        (await generator.generation("new")).say("x")
        assert (await other.end_of("new")).HasField("finished")
        await talk.submit("further", text="further")  # an open Session takes more
        for generation in (old, await generator.generation("further")):
            generation.say("x")

        assert (await talk.end_of("old")).HasField("finished")
        assert (await talk.end_of("further")).HasField("finished")


async def test_what_outlives_the_grace_of_a_connection_is_cut(generator, serve):
    age = ConnectionAge(max_s=0.05, grace_s=0.05)
    async with serve(connection_age=age) as served:
        talk = Talk(served.stub)
        await talk.submit("a", text="a")
        await (await generator.generation("a")).cancelled.wait()

        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await talk.end_of("a")
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def test_connections_last_by_default():
    names = [name for name, _ in server_options(ANY_AGE)]

    assert not [name for name in names if "connection_age" in name]


@pytest.mark.parametrize(("seconds", "ms"), [(0.0, 1), (1e-9, 1), (1.5, 1500), (1e9, 2**31 - 1)])
def test_an_age_in_seconds_is_milliseconds_in_the_cores_range(seconds, ms):
    options = dict(server_options(ConnectionAge(max_s=seconds, grace_s=seconds)))

    assert options["grpc.max_connection_age_ms"] == ms
    assert options["grpc.max_connection_age_grace_ms"] == ms


async def test_a_request_that_is_too_large_is_told_by_how_much(serve, request_of):
    async with serve([("grpc.max_send_message_length", -1)]) as served:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await served.stub.Generate(request_of("x" * MAX_MESSAGE_BYTES)).read()

        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert f"vs. {MAX_MESSAGE_BYTES}" in caught.value.details()


async def test_a_request_that_just_fits_is_taken(generator, serve, request_of):
    generator.on_submit = lambda generation: generation.say("x")
    request = request_of("")
    request.input.text = "x" * (MAX_MESSAGE_BYTES - 20)
    request.input.text += "x" * (MAX_MESSAGE_BYTES - request.ByteSize())
    assert request.ByteSize() == MAX_MESSAGE_BYTES
    async with serve([("grpc.max_send_message_length", -1)]) as served:
        call = served.stub.Generate(request)
        assert [response async for response in call]


async def test_an_answer_larger_than_clients_accept_comes_in_pieces(serve_front):
    """As an echo may be, and what a reader finds that lags."""
    async with serve_front(max_model_len=8 << 20) as (front, stub):
        front.says("é")
        num = 1_500_000  # two bytes each, and a token for each byte
        ids = front.tokenizer.encode_text("é") * num
        assert len(ids) == 2 * num
        talk = Talk(stub)
        for name in "ab":
            given = pb.GenerationInput(text="é" * num, echo=True, max_tokens=2)
            await talk.send(pb.Submit(request_id=name, input=given))
        for name in "ab":
            assert (await talk.end_of(name)).HasField("finished")

        assert [talk.text_of(name) for name in "ab"] == ["é" * (num + 1)] * 2


_CLIENT = """
import asyncio, sys
import grpc
from cadenza.v1 import generation_pb2 as pb
from cadenza.v1.generation_pb2_grpc import GenerationServiceStub

async def main():
    async with grpc.aio.insecure_channel(sys.stdin.readline().strip()) as channel:
        call = GenerationServiceStub(channel).Session()
        given = pb.GenerationInput(text="a")
        await call.write(pb.SessionRequest(submit=pb.Submit(request_id="a", input=given)))
        await call.read()
        await call.read()

asyncio.run(main())
"""


@pytest.fixture
def client() -> Iterator[subprocess.Popen[str]]:
    """Waits for an address. It is there before the server: gRPC does not like to be forked."""
    command = [sys.executable, "-P", "-c", _CLIENT]
    with subprocess.Popen(command, stdin=subprocess.PIPE, text=True) as client:
        yield client
        client.kill()


@pytest.mark.extra
async def test_a_frozen_client_is_noticed(generator, serve, tell, client):
    """Its network goes on, but it answers no pings. Without a ping timeout it takes a minute."""
    async with serve() as served:
        client.stdin.write(f"127.0.0.1:{served.port}\n")
        client.stdin.flush()
        generation = await generator.generation("a")
        client.send_signal(signal.SIGSTOP)
        stopped_s = time.monotonic()
        await generation.cancelled.wait()  # within this test's 20 s
        tell(f"noticed after {time.monotonic() - stopped_s:.1f} s")
