"""A call's deadline, with the real generator between gRPC and a fake engine."""

from __future__ import annotations

import asyncio
import time

import grpc
from structlog.testing import capture_logs

from tests.service.waiting import until


async def read(call) -> tuple[str, grpc.StatusCode]:
    """The text, and the code that ended it."""
    text = ""
    try:
        async for response in call:
            text += "".join(event.tokens.text for event in response.events)
    except grpc.aio.AioRpcError as error:
        return text, error.code()
    return text, grpc.StatusCode.OK


async def test_a_call_without_a_deadline_sets_none(serve_front, request_of):
    async with serve_front() as (front, stub):
        assert (await read(stub.Generate(request_of("hi", max_tokens=2))))[1] is grpc.StatusCode.OK

        [submit] = front.engine.submits()
        assert submit.deadline_s is None


async def test_the_engine_is_told_the_calls_deadline(serve_front, request_of):
    async with serve_front() as (front, stub):
        before_s = time.monotonic()
        await read(stub.Generate(request_of("hi", max_tokens=2, n=2), timeout=100))
        after_s = time.monotonic()

        [submit] = front.engine.submits()
        # gRPC sends a timeout in a few digits, rounded up
        assert before_s + 99 < submit.deadline_s < after_s + 101


async def test_a_deadline_that_grpc_notices_first_is_counted_as_one(
    serve_front, request_of, monkeypatch
):
    # The client's clock starts before the server's, by as much as a busy machine takes
    monkeypatch.setattr("cadenza.service.generation._EARLY_S", 0.4)
    async with serve_front() as (front, stub):
        front.engine.auto = False
        _, code = await read(stub.Generate(request_of("hi"), timeout=0.5))
        assert code is grpc.StatusCode.DEADLINE_EXCEEDED
        await front.engine.until(lambda: bool(front.engine.cancels()))

        finished = front.generator.metrics.finished
        assert (finished["deadline"], finished["abort"]) == (1, 0)


async def test_whoever_notices_first_the_code_is_the_same_and_nothing_is_left(
    serve_front, request_of, caplog
):
    """The engine, gRPC's server and its client each see many deadlines pass at about once."""
    with capture_logs() as logs:
        async with serve_front() as (front, stub):
            request = request_of("hi", ignore_eos=True, max_tokens=200)
            front.engine.auto = False
            pacing = asyncio.create_task(step_slowly(front.engine))
            calls = [stub.Generate(request, timeout=0.1 + 0.003 * i) for i in range(60)]
            codes = {code for _, code in await asyncio.gather(*map(read, calls))}

            assert codes == {grpc.StatusCode.DEADLINE_EXCEEDED}
            await until(lambda: front.is_clean() and front.generator.is_idle)
            pacing.cancel()
    assert logs == []
    assert caplog.records == []  # gRPC's own


async def step_slowly(engine) -> None:
    while True:
        engine.step()
        await asyncio.sleep(0.002)
