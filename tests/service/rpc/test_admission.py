"""Quotas and shedding over gRPC, with the real generator between it and a fake engine."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from cadenza.service.limits import Limits
from cadenza.service.rpc.status import PUSHBACK
from cadenza.v1 import generation_pb2 as pb

LEAST_URGENT = {"limits": Limits(max_queued=1), "chosen": {"shed_load": "lowest-priority"}}
ONE_EACH = {
    "chosen": {"gate_arrivals": "tenant-quota"},
    "options": {"tenant-quota": {"max_queued": 1}},
}


async def read(call) -> list[str]:
    """The kinds of all events, and the text that they have."""
    events = [event async for response in call for event in response.events]
    return [event.WhichOneof("event") for event in events]


def retry_s(error: grpc.aio.AioRpcError) -> float:
    """The delay of RetryInfo, which the pushback must agree with."""
    status = rpc_status.from_call(error)
    assert status is not None
    info = error_details_pb2.RetryInfo()
    [detail] = status.details
    assert detail.Unpack(info)
    delay_s = info.retry_delay.ToTimedelta().total_seconds()
    pushback = dict(error.trailing_metadata())[PUSHBACK]
    assert int(pushback) == round(delay_s * 1000)
    return delay_s


async def test_a_tenant_over_its_quota_gets_resource_exhausted_with_retry_info(
    serve_front, request_of
):
    async with serve_front(**ONE_EACH) as (_, stub):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await read(stub.Generate(request_of("hello", n=2, tenant="a")))
        assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "limit of 1 waiting choices" in refused.value.details()
        assert retry_s(refused.value) == 1.0

        assert (await read(stub.Generate(request_of("hello", tenant="a"))))[-1] == "finished"


async def test_a_tenant_over_its_rate_is_told_when_it_may_come_back(serve_front, request_of):
    rate = {"tenant-quota": {"tokens_per_s": 0.01, "burst_s": 3000}}
    async with serve_front(chosen=ONE_EACH["chosen"], options=rate) as (_, stub):
        request = request_of("hello", max_tokens=20, tenant="a")
        await read(stub.Generate(request))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await read(stub.Generate(request))
        assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert 0 < retry_s(refused.value) <= 3600


async def test_who_is_shed_gets_resource_exhausted_and_the_newcomer_its_answer(
    serve_front, request_of
):
    async with serve_front(**LEAST_URGENT) as (front, stub):
        front.engine.auto = False
        patient = asyncio.create_task(read(stub.Generate(request_of("hello", priority=1))))
        await front.engine.until(lambda: bool(front.engine.waiting))
        urgent = asyncio.create_task(read(stub.Generate(request_of("hello", priority=0))))

        with pytest.raises(grpc.aio.AioRpcError) as shed:
            await patient
        assert shed.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert retry_s(shed.value) == 1.0
        await front.engine.until(lambda: len(front.engine.cancels()) == 1)
        front.engine.resume()
        assert (await urgent)[-1] == "finished"


async def test_a_request_of_a_session_is_shed_alone(serve_front, submit_of):
    async with serve_front(**LEAST_URGENT) as (front, stub):
        front.engine.auto = False
        call = stub.Session()
        await call.write(submit_of("patient", priority=1))
        await front.engine.until(lambda: bool(front.engine.waiting))
        await call.write(submit_of("urgent", priority=0))
        await front.engine.until(lambda: len(front.engine.cancels()) == 1)
        front.engine.resume()
        await call.done_writing()

        ends = {
            event.request_id: event
            async for response in call
            for event in response.events
            if event.WhichOneof("event") in ("finished", "failed")
        }
        assert ends["urgent"].WhichOneof("event") == "finished"
        failed: pb.Failed = ends["patient"].failed
        assert failed.code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
        assert failed.retryable
        assert failed.retry_after.seconds == 1
