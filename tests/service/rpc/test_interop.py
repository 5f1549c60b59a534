"""The cases of gRPC's interoperability tests that fit this service, by their names."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from cadenza.service.errors import InvalidRequest
from cadenza.service.events import Delta
from tests.service.rpc.talking import Talk

SERVICE = "cadenza.v1.GenerationService"
REQUEST_SIZES = (27182, 8, 1828, 45904)
RESPONSE_SIZES = (31415, 9, 2653, 58979)
SPECIAL = "\t\ntest with whitespace\r\nand Unicode BMP ☺ and non-BMP 😈\t\n"


def says(size: int) -> Delta:
    return Delta(choice=0, text="x" * size, token_ids=[1])


async def test_empty_unary(serve):
    async with serve() as served:
        stub = health_pb2_grpc.HealthStub(served.channel)
        call = stub.Check(health_pb2.HealthCheckRequest())

        assert (await call).status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert await call.code() is grpc.StatusCode.OK


async def test_large_unary(generator, serve, request_of):
    async with serve() as served:
        text = "x" * 271_828
        call = served.stub.Generate(request_of(text))
        generation = await generator.generation(text)
        generation.feed(says(314_159))
        generation.end()
        events = [event async for response in call for event in response.events]

        assert sum(len(event.tokens.text) for event in events) == 314_159
        assert await call.code() is grpc.StatusCode.OK


async def test_client_streaming(generator, serve):
    """Many requests of several sizes, and the half-close before anything is read."""
    generator.on_submit = lambda generation: generation.say("x")
    async with serve() as served:
        talk = Talk(served.stub)
        for size in REQUEST_SIZES:
            await talk.submit(str(size), text="x" * size)
        await talk.call.done_writing()
        for size in REQUEST_SIZES:
            assert (await talk.end_of(str(size))).HasField("finished")

        assert sum(len(request.text) for request in generator.requests) == 74_922
        assert await talk.call.read() is grpc.aio.EOF
        assert await talk.call.code() is grpc.StatusCode.OK


async def test_server_streaming(generator, serve):
    async with serve() as served:
        talk = Talk(served.stub)
        await talk.submit("a", text="a")
        await talk.call.done_writing()
        generation = await generator.generation("a")
        for size in RESPONSE_SIZES:
            generation.feed(says(size))
        generation.end()
        await talk.end_of("a")
        texts = [event.tokens.text for event in talk.events if event.HasField("tokens")]

        assert tuple(map(len, texts)) == RESPONSE_SIZES
        assert await talk.call.code() is grpc.StatusCode.OK


async def test_ping_pong(generator, serve):
    """Each request is sent when the one before it has been answered."""
    async with serve() as served:
        talk = Talk(served.stub)
        for name, request, response in zip("abcd", REQUEST_SIZES, RESPONSE_SIZES, strict=True):
            await talk.submit(name, text=name * request)
            generation = await generator.generation(name * request)
            generation.feed(says(response))
            generation.end()
            assert (await talk.end_of(name)).HasField("finished")
            assert len(talk.text_of(name)) == response
        await talk.call.done_writing()

        assert await talk.call.read() is grpc.aio.EOF
        assert await talk.call.code() is grpc.StatusCode.OK


async def test_empty_stream(serve):
    async with serve() as served:
        call = served.stub.Session()
        await call.done_writing()

        assert await call.read() is grpc.aio.EOF
        assert await call.code() is grpc.StatusCode.OK


@pytest.mark.parametrize("method", ["Generate", "Session"])
async def test_cancel_after_begin(generator, serve, request_of, method):
    async with serve() as served:
        call = served.stub.Generate(request_of("a")) if method == "Generate" else None
        call = call or served.stub.Session()
        call.cancel()

        assert await call.code() is grpc.StatusCode.CANCELLED
        generator.on_submit = lambda generation: generation.say("x")
        assert await served.stub.Generate(request_of("b")).read()


@pytest.mark.parametrize("method", ["Generate", "Session"])
async def test_cancel_after_first_response(generator, serve, request_of, method):
    async with serve() as served:
        if method == "Generate":
            call = served.stub.Generate(request_of("a"))
        else:
            talk = Talk(served.stub)
            await talk.submit("a", text="a")
            call = talk.call
        assert await call.read()
        call.cancel()

        assert await call.code() is grpc.StatusCode.CANCELLED
        await generator.generations["a"].cancelled.wait()


@pytest.mark.parametrize("method", ["Generate", "Session"])
async def test_timeout_on_sleeping_server(generator, serve, request_of, submit_of, method):
    async with serve() as served:
        if method == "Generate":
            call = served.stub.Generate(request_of("a"), timeout=0.5)
        else:
            call = served.stub.Session(timeout=0.5)
            await call.write(submit_of("a"))

        await call.read()
        assert await call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await (await generator.generation("a")).cancelled.wait()


@pytest.mark.parametrize("message", ["test status message", SPECIAL], ids=["plain", "special"])
async def test_status_code_and_message(generator, serve, request_of, message):
    """And special_status_message: as the status of a call, and in band."""
    generator.errors["a"] = InvalidRequest(message)
    async with serve() as served:
        call = served.stub.Generate(request_of("a"))
        assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert await call.details() == message

        talk = Talk(served.stub)
        await talk.submit("a", text="a")
        failed = (await talk.end_of("a")).failed
        assert (failed.code, failed.message) == (3, message)


@pytest.mark.parametrize(
    "path",
    [
        f"/{SERVICE}/UnimplementedCall",
        "/cadenza.v1.UnimplementedService/Generate",
        "/cadenza.v2.GenerationService/Generate",
        "/",
        "/x",
        "/grpc.health.v1.Health/Nothing",
        "/" + "x" * 4000,
    ],
)
async def test_unimplemented_method_and_service(serve, path):
    async with serve() as served:
        for kind in (served.channel.unary_unary, served.channel.unary_stream):
            call = kind(path)(b"")
            assert await call.code() is grpc.StatusCode.UNIMPLEMENTED
            assert f"There is no method '{path[:200]}'" in await call.details()
            assert SERVICE in await call.details()


async def test_half_close_keeps_what_runs_going(generator, serve):
    async with serve() as served:
        talk = Talk(served.stub)
        for name in "abc":
            await talk.submit(name, text=name)
        await talk.call.done_writing()
        for name in "cab":
            generation = await generator.generation(name)
            for size in RESPONSE_SIZES:
                generation.feed(says(size))
            generation.end()
            assert (await talk.end_of(name)).HasField("finished")
            assert len(talk.text_of(name)) == sum(RESPONSE_SIZES)

        assert await talk.call.read() is grpc.aio.EOF
        assert await talk.call.code() is grpc.StatusCode.OK


async def test_concurrent_large_unary(generator, serve, request_of):
    """All at once on one connection."""
    generator.on_submit = lambda generation: generation.say("x")
    async with serve() as served:
        calls = [served.stub.Generate(request_of(f"{number:0>2000}")) for number in range(200)]
        codes = await asyncio.gather(*map(finished, calls))

        assert set(codes) == {grpc.StatusCode.OK}


async def finished(call: grpc.aio.UnaryStreamCall) -> grpc.StatusCode:
    async for _ in call:
        pass
    code: grpc.StatusCode = await call.code()
    return code
