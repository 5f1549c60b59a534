"""A client that sends more about its requests than the engine works off is held back."""

from __future__ import annotations

import grpc

from cadenza.service.rpc.session import MAX_UNHANDLED
from cadenza.v1 import generation_pb2 as pb
from cadenza.wire.messages import Reprioritise


async def test_no_more_is_on_its_way_to_the_engine_than_it_handles_in_a_step(
    serve_front, submit_of
):
    """All of it comes in the end, in order."""
    num_sent = 4 * MAX_UNHANDLED
    async with serve_front() as (front, stub):
        engine = front.engine
        engine.auto = False

        def told() -> list[int]:
            return [each.priority for each in engine.received if isinstance(each, Reprioritise)]

        stream = stub.Session()
        await stream.write(submit_of("a", "x"))
        await stream.read()
        for priority in range(num_sent):
            action = pb.Reprioritise(request_id="a", priority=priority)
            await stream.write(pb.SessionRequest(reprioritise=action))
        await stream.done_writing()
        for windows in range(1, 5):
            await engine.until(lambda count=windows * MAX_UNHANDLED: len(told()) >= count)
            assert len(told()) == windows * MAX_UNHANDLED
            engine.step()
        engine.resume()
        while await stream.read() is not grpc.aio.EOF:
            pass

    assert told() == list(range(num_sent))
