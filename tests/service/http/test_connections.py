"""Clients that do not read, do not send, or are too many: the server keeps none of them."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import weakref

import pytest

from cadenza.service.http.answer import Answer
from cadenza.service.http.completions import Completions
from cadenza.service.http.connection import ConnectionLimits
from cadenza.service.http.endpoint import _stream
from cadenza.service.http.errors import ClientGone

from ..waiting import until
from .conftest import request_bytes

COMPLETIONS = "/v1/completions"
LONG = {"prompt": "x", "max_tokens": 1500, "ignore_eos": True, "logprobs": 20}


def errors_in(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]


@pytest.mark.parametrize("stream", [True, False])
def test_a_connection_whose_client_does_not_read_its_answer_is_dropped(run, serve, stream, caplog):
    async def main():
        limits = ConnectionLimits(send_s=0.2)
        async with serve(connections=limits, max_model_len=10_000) as served:
            client = await served.silent(request_bytes(COMPLETIONS, {**LONG, "stream": stream}))
            await served.until_connections(1)
            await served.until_connections(0)

            await until(served.front.is_clean)
            assert errors_in(caplog) == []
            client.close()

    run(main())


@pytest.mark.parametrize("n", [1, 16])
def test_a_client_that_does_not_read_plain_text_is_dropped_while_it_comes(run, serve, caplog, n):
    """What is written at once, past whoever waits, is bounded as well."""

    async def main():
        limits = ConnectionLimits(send_s=0.2)
        async with serve(connections=limits, max_model_len=20_000) as served:
            engine = served.front.engine
            engine.auto = False
            served.front.says("x" * 19_000)
            body = {"prompt": "x", "max_tokens": 19_000, "n": n, "stream": True}
            client = await served.silent(request_bytes(COMPLETIONS, body))
            await engine.until(lambda: bool(engine.waiting))
            async with asyncio.timeout(15):
                while served.server.num_connections:
                    engine.step()
                    await asyncio.sleep(0)
            await engine.until(lambda: len(engine.cancels()) == n)

            assert engine.generated < n * 19_000
            assert errors_in(caplog) == []
            client.close()

    run(main())


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
def test_a_connection_whose_client_leaves_the_end_of_its_answer_is_dropped(run, serve, version):
    async def main():
        limits = ConnectionLimits(send_s=0.2, idle_s=1)
        async with serve(connections=limits, max_model_len=10_000) as served:
            body = {**LONG, "max_tokens": 220}  # more than the kernels hold, less than one write
            request = request_bytes(COMPLETIONS, body).replace(b"1.1", version, 1)
            client = await served.silent(request)
            await served.until_connections(1)
            await served.front.engine.until(lambda: bool(served.front.engine.submits()))
            await served.until_connections(0)
            client.close()

    run(main())


def test_a_client_that_does_not_read_may_miss_an_error(run, serve, caplog):
    async def main():
        limits = ConnectionLimits(send_s=0.2)
        async with serve(connections=limits, max_model_len=10_000) as served:
            engine = served.front.engine
            engine.auto = False
            client = await served.silent(request_bytes(COMPLETIONS, {**LONG, "stream": True}))
            await engine.until(lambda: bool(engine.waiting))
            [request] = engine.waiting
            engine.step(400)
            engine.fail("no luck", request)
            await served.until_connections(0)

            assert errors_in(caplog) == []
            client.close()

    run(main())


def test_a_client_with_several_requests_on_the_way_is_missed_when_it_leaves(run, serve):
    async def main():
        async with serve() as served:
            engine = served.front.engine
            engine.auto = False
            body = {"prompt": "x", "max_tokens": 100, "stream": True}
            _, writer = await served.raw_bytes(request_bytes(COMPLETIONS, body) * 2)
            await engine.until(lambda: bool(engine.waiting))
            writer.close()
            await engine.until(lambda: len(engine.cancels()) == 1)
            await served.until_connections(0)

    run(main())


def test_the_tasks_that_read_several_generations_end_with_their_stream(run, open_front):
    class Gone:
        started = True

        async def send(self, events):
            raise ClientGone

    async def main():
        async with open_front() as front:
            call = Completions().parse({"prompt": ["a", "b", "c"], "max_tokens": 50})
            generations = [await front.generator.submit(request) for request in call.requests]
            before = asyncio.all_tasks()
            with pytest.raises(ClientGone):
                await _stream(Answer(Completions(), call, generations), Gone())

            assert asyncio.all_tasks() == before
            for generation in generations:
                generation.cancel()

    run(main())


HEALTH = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"
UNWANTED = b"POST /nope HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n"


async def rest_of(reader) -> bytes:
    """Everything up to the end of the connection, which an abort may announce rudely."""
    data = bytearray()
    with contextlib.suppress(ConnectionResetError):
        while part := await reader.read(1 << 16):
            data += part
    return bytes(data)


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET /health HTT",
        b"GET /health HTTP/1.1\r\nhost: x\r\n",
        HEALTH + b"\r\n",
        HEALTH + b"GET /hea",
        UNWANTED,
        UNWANTED + b"half",
    ],
)
def test_a_connection_that_sends_no_whole_request_is_dropped(run, serve, sent):
    async def main():
        async with serve(connections=ConnectionLimits(head_s=0.2, idle_s=1)) as served:
            reader, writer = await served.raw_bytes(sent)
            answer = await rest_of(reader)

            assert answer.count(b"HTTP/1.1 ") == min(1, sent.count(b"\r\n\r\n"))
            assert served.server.num_connections == 0
            writer.close()

    run(main())


@pytest.mark.parametrize("more", [b"\r\n", b"GET /hea", HEALTH[:-2]])
def test_half_a_request_after_a_whole_one_does_not_keep_a_connection(run, serve, more):
    async def main():
        async with serve(connections=ConnectionLimits(head_s=0.2)) as served:
            reader, writer = await served.raw_bytes(HEALTH)
            assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
            writer.write(more)
            assert await rest_of(reader) == b""
            writer.close()

    run(main())


def test_an_answer_may_take_longer_than_a_request(run, serve):
    async def main():
        async with serve(connections=ConnectionLimits(head_s=0.2, body_s=0.2)) as served:
            engine = served.front.engine
            engine.auto = False
            reader, writer = await served.raw(COMPLETIONS, {"prompt": "x", "stream": True})
            await engine.until(lambda: bool(engine.waiting))
            for _ in range(2):  # clients that came later have used up their time
                silent_reader, silent_writer = await served.raw_bytes(b"")
                await rest_of(silent_reader)
                silent_writer.close()
            engine.resume()
            assert (await reader.readuntil(b"[DONE]")).startswith(b"HTTP/1.1 200 ")
            writer.close()

    run(main())


def test_half_a_body_is_answered_408_and_the_connection_closed(run, serve):
    async def main():
        async with serve(connections=ConnectionLimits(body_s=0.2)) as served:
            whole = request_bytes(COMPLETIONS, {"prompt": "x"})
            reader, writer = await served.raw_bytes(whole[:-3])
            answer = await rest_of(reader)

            assert answer.startswith(b"HTTP/1.1 408 ")
            assert b"did not arrive in time" in answer
            writer.close()

    run(main())


def test_a_connection_too_many_is_answered_503_and_closed(run, serve):
    async def main():
        async with serve(connections=ConnectionLimits(max_connections=2)) as served:
            others = [await served.raw_bytes(b"") for _ in range(2)]
            await served.until_connections(2)
            reader, writer = await served.raw_bytes(b"")
            answer = await rest_of(reader)
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["type"]
            writer.close()
            others[0][1].close()
            await served.until_connections(1)
            assert (await served.http.get("/health")).status_code == 200
            others[1][1].close()

    run(main())


def test_a_connection_is_freed_when_it_is_over(run, serve):
    async def main():
        async with serve() as served:
            body = {"prompt": "x", "max_tokens": 3, "stream": True}
            reader, writer = await served.raw_bytes(request_bytes(COMPLETIONS, body))
            await reader.readuntil(b"[DONE]")
            [connection] = served.server._server.server_state.connections
            left = weakref.ref(connection)
            del connection
            writer.close()
            await served.until_connections(0)
            for _ in range(10):
                await asyncio.sleep(0)

            assert left() is None

    gc.disable()
    try:
        run(main())
    finally:
        gc.enable()
