"""Shedding within a session, with the real generator between it and a fake engine."""

from __future__ import annotations

import grpc

from cadenza.service.limits import Limits
from cadenza.v1 import generation_pb2 as pb

LEAST_URGENT = {"limits": Limits(max_queued=1), "chosen": {"shed_load": "lowest-priority"}}


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
