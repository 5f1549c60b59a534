"""Clients that do not read, do not send, or are too many: the server keeps none of them."""

from __future__ import annotations

import asyncio

import pytest

from cadenza.service.http.completions import Completions
from cadenza.service.http.connection import ConnectionLimits
from cadenza.service.http.endpoint import Answer, _stream
from cadenza.service.http.errors import ClientGone

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

            assert served.front.is_clean()
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
