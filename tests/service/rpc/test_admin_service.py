"""AdminService over a real channel, with a fake engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from cadenza.service.admin import Admin, AdminAccess
from cadenza.service.limits import Limits
from cadenza.service.request import GenerationRequest
from cadenza.service.rpc import GrpcServer
from cadenza.service.rpc.admin_servicer import MAX_TOLD, SERVICE
from cadenza.v1 import admin_pb2 as pb
from cadenza.v1 import generation_pb2
from cadenza.v1.admin_pb2_grpc import AdminServiceStub
from cadenza.v1.generation_pb2_grpc import GenerationServiceStub
from cadenza.wire.messages import ResetPrefixCache

from ..conftest import Front, OpenFront
from .talking import Talk, refused_field

KEY = (("authorization", "Bearer s3cret"),)
CALLS: dict[str, Any] = {
    "GetLoad": pb.GetLoadRequest(),
    "GetSnapshot": pb.GetSnapshotRequest(),
    "GetTimeline": pb.GetTimelineRequest(id="x"),
    "ResetPrefixCache": pb.ResetPrefixCacheRequest(),
    "Drain": pb.DrainRequest(),
    "Resume": pb.ResumeRequest(),
}
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Served:
    def __init__(self, front: Front, server: GrpcServer, channel: grpc.aio.Channel) -> None:
        self.front = front
        self.server = server
        self.channel = channel
        self.stub = AdminServiceStub(channel)
        self.generation = GenerationServiceStub(channel)

    async def draining(self) -> None:
        """Wait until its health says that it takes no requests."""
        watch = health_pb2_grpc.HealthStub(self.channel).Watch(health_pb2.HealthCheckRequest())
        while (await watch.read()).status != NOT_SERVING:
            pass
        watch.cancel()

    async def health(self) -> int:
        stub = health_pb2_grpc.HealthStub(self.channel)
        return (await stub.Check(health_pb2.HealthCheckRequest())).status


@asynccontextmanager
async def serving(
    open_front: OpenFront, key: str | None = None, *, is_local: bool = True, **options: Any
) -> AsyncIterator[Served]:
    async with open_front(**options) as front:
        admin = Admin(front.control, AdminAccess(key, is_local=is_local))
        server = GrpcServer(front.generator, admin, port=0)
        port = await server.start()
        await server.set_ready(True)
        try:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                yield Served(front, server, channel)
        finally:
            await server.stop(0)


async def status(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), caught.value.details()


def test_every_call_is_known_here():
    assert set(CALLS) == set(pb.DESCRIPTOR.services_by_name["AdminService"].methods_by_name)


@pytest.mark.parametrize("name", CALLS)
async def test_every_call_needs_the_key_where_there_is_one(open_front, name):
    async with serving(open_front, "s3cret", is_local=False) as served:
        call = getattr(served.stub, name)
        for metadata in ((), (("authorization", "Bearer other"),), KEY * 2):
            code, _ = await status(call(CALLS[name], metadata=metadata))
            assert code is grpc.StatusCode.UNAUTHENTICATED
        page = (*KEY, ("origin", "http://localhost"))
        assert (await status(call(CALLS[name], metadata=page)))[0] is (
            grpc.StatusCode.PERMISSION_DENIED
        )
        assert not served.front.generator.is_paused
        assert not any(
            isinstance(message, ResetPrefixCache) for message in served.front.engine.received
        )
        if name != "GetTimeline":
            await call(CALLS[name], metadata=KEY)


@pytest.mark.parametrize("name", CALLS)
async def test_without_a_key_calls_are_served_on_loopback_alone(open_front, name):
    async with serving(open_front, is_local=False) as served:
        code, details = await status(getattr(served.stub, name)(CALLS[name]))
        assert code is grpc.StatusCode.PERMISSION_DENIED
        assert "CADENZA_ADMIN_API_KEY" in details
    async with serving(open_front) as served:
        call = getattr(served.stub, name)
        passed_on = (("x-forwarded-for", "10.0.0.1"),)
        assert (await status(call(CALLS[name], metadata=passed_on)))[0] is (
            grpc.StatusCode.PERMISSION_DENIED
        )


@pytest.mark.parametrize("name", CALLS)
async def test_bytes_that_are_no_message_are_refused(open_front, name):
    async with serving(open_front) as served:
        call = served.channel.unary_unary(f"/{SERVICE}/{name}")
        assert (await status(call(b"\xff\xff")))[0] is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_server_without_an_administrator_has_no_such_service(serve):
    async with serve() as served:
        call = AdminServiceStub(served.channel).GetLoad(pb.GetLoadRequest())
        assert (await status(call))[0] is grpc.StatusCode.UNIMPLEMENTED


async def test_load_and_snapshot_tell_what_there_is_to_do(open_front):
    async with serving(open_front, limits=Limits(max_queued=7)) as served:
        served.front.engine.auto = False
        talk = Talk(served.generation)
        await talk.submit("a", text="hello", n=2, tenant="t")
        await served.front.engine.until(lambda: len(served.front.engine.waiting) == 2)
        await talk.submit("b", text="other")
        await served.front.engine.until(lambda: len(served.front.engine.waiting) == 3)
        load = await served.stub.GetLoad(pb.GetLoadRequest())
        assert (load.in_flight, load.queued) == (2, 3)

        served.front.engine.seats = 2
        served.front.engine.step()
        while not [event for event in talk.events if event.HasField("tokens")]:
            talk.events += (await talk.call.read()).events
        snapshot = await served.stub.GetSnapshot(pb.GetSnapshotRequest())

        assert snapshot.is_ready
        assert not snapshot.is_draining
        assert (snapshot.load.in_flight, snapshot.load.queued, snapshot.max_queued) == (2, 1, 7)
        engine = snapshot.engine
        assert (engine.running, engine.waiting, engine.total_blocks) == (2, 1, 64)
        assert (engine.max_model_len, engine.block_size, engine.prefix_hits) == (256, 16, 4)
        first, second = snapshot.requests
        assert snapshot.num_requests == 2
        assert (first.model, first.tenant, first.prompt_tokens) == ("tiny", "t", 3)
        assert [choice.state for choice in first.choices] == ["running"] * 2
        assert first.cached_tokens == 3
        assert (second.tenant, [choice.state for choice in second.choices]) == ("", ["waiting"])
        assert not second.HasField("cached_tokens")

        told = await served.stub.GetSnapshot(pb.GetSnapshotRequest(max_requests=1))
        assert ([each.id for each in told.requests], told.num_requests) == ([first.id], 2)
        told = await served.stub.GetSnapshot(pb.GetSnapshotRequest(max_requests=0))
        assert ([*told.requests], told.num_requests) == ([], 2)


async def test_a_snapshot_has_a_bound(open_front):
    async with serving(open_front) as served:
        request = pb.GetSnapshotRequest(max_requests=MAX_TOLD + 1)
        code, details = await status(served.stub.GetSnapshot(request))

        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert details == f"max_requests is {MAX_TOLD + 1}; at most {MAX_TOLD} are told"
        assert await refused_field(served.stub.GetSnapshot(request)) == "max_requests"


async def test_a_snapshot_while_the_engine_loads_has_no_engine(open_front):
    async with serving(open_front, ready=False) as served:
        snapshot = await served.stub.GetSnapshot(pb.GetSnapshotRequest())

        assert not snapshot.HasField("engine")
        assert not snapshot.is_ready


async def test_the_timeline_of_a_request_is_told_when_it_has_ended(open_front):
    async with serving(open_front) as served:
        talk = Talk(served.generation)
        await talk.submit("a", text="hello", tenant="t", max_tokens=2)
        await talk.end_of("a")
        name = talk.events[0].accepted.id
        for asked in (name, f"chatcmpl-{name}"):
            told = await served.stub.GetTimeline(pb.GetTimelineRequest(id=asked))

            assert (told.request.id, told.request.tenant, told.dropped) == (name, "t", 0)
            assert [choice.state for choice in told.request.choices] == ["finished"]
            assert [choice.reason for choice in told.request.choices] == ["length"]
            assert [record.kind for record in told.records] == ["arrived", "admitted", "finished"]
            assert told.records[1].facts["cached_tokens"] == 3
            seconds = [record.time.ToTimedelta().total_seconds() for record in told.records]
            assert seconds == sorted(seconds)


@pytest.mark.parametrize("name", ["", "nobody", "x" * 5000, "😀"])
async def test_a_request_that_is_not_known_is_not_found(open_front, name):
    async with serving(open_front) as served:
        code, details = await status(served.stub.GetTimeline(pb.GetTimelineRequest(id=name)))

        assert code is grpc.StatusCode.NOT_FOUND
        assert details.startswith("No such request is known.")


async def test_the_cache_is_reset(open_front):
    async with serving(open_front) as served:
        await served.stub.ResetPrefixCache(pb.ResetPrefixCacheRequest())

        assert ResetPrefixCache() in served.front.engine.received


async def test_a_drained_service_takes_nothing_until_it_is_resumed(open_front):
    async with serving(open_front) as served:
        front = served.front
        front.engine.auto = False
        talk = Talk(served.generation)
        await talk.submit("a", text="hello", max_tokens=2)
        await front.engine.until(lambda: bool(front.engine.waiting))
        assert (await served.stub.Drain(pb.DrainRequest())).in_flight == 1

        assert await served.health() == NOT_SERVING
        assert not front.generator.is_ready
        await talk.submit("b", text="hello")
        assert (await talk.end_of("b")).failed.code == 14
        request = generation_pb2.GenerateRequest(input=generation_pb2.GenerationInput(text="x"))
        assert await served.generation.Generate(request).code() is grpc.StatusCode.UNAVAILABLE
        snapshot = await served.stub.GetSnapshot(pb.GetSnapshotRequest())
        assert snapshot.is_draining
        assert not snapshot.is_ready
        await served.server.set_ready(True)  # as when the engine is back
        assert await served.health() == NOT_SERVING

        front.engine.resume()
        assert (await talk.end_of("a")).HasField("finished")
        assert (await served.stub.Resume(pb.ResumeRequest())).is_ready
        assert await served.health() == SERVING
        await talk.submit("b", text="hello", max_tokens=1)
        assert (await talk.end_of("b")).HasField("finished")


async def test_a_drain_waits_for_what_is_here(open_front):
    async with serving(open_front) as served:
        front = served.front
        front.engine.auto = False
        talk = Talk(served.generation)
        await talk.submit("a", text="hello", max_tokens=2)
        await front.engine.until(lambda: bool(front.engine.waiting))
        request = pb.DrainRequest()
        request.timeout.FromMilliseconds(1)
        assert (await served.stub.Drain(request)).in_flight == 1
        request.timeout.FromSeconds(60)
        draining = asyncio.ensure_future(served.stub.Drain(request))
        await served.draining()
        front.engine.resume()

        assert (await draining).in_flight == 0
        assert (await talk.end_of("a")).HasField("finished")


async def test_a_drain_waits_no_longer_once_requests_are_taken_again(open_front):
    async with serving(open_front) as served:
        front = served.front
        front.engine.auto = False
        talk = Talk(served.generation)
        await talk.submit("a", text="hello", max_tokens=2)
        await front.engine.until(lambda: bool(front.engine.waiting))
        request = pb.DrainRequest()
        request.timeout.FromSeconds(600)
        draining = asyncio.ensure_future(served.stub.Drain(request))
        await served.draining()
        assert (await served.stub.Resume(pb.ResumeRequest())).is_ready

        assert (await draining).in_flight == 1
        front.engine.resume()
        assert (await talk.end_of("a")).HasField("finished")


async def test_a_drain_waits_for_nothing_but_what_it_tells(open_front):
    """Not for somebody who wants to know a prompt's tokens before the engine is there."""
    async with serving(open_front, ready=False) as served:
        generator = served.front.generator
        encoding = asyncio.create_task(generator.encode(GenerationRequest(text="x")))
        await asyncio.sleep(0)
        assert generator.num_queued
        request = pb.DrainRequest()
        request.timeout.FromSeconds(600)
        assert (await served.stub.Drain(request)).in_flight == 0

        encoding.cancel()


async def test_the_last_change_is_what_health_tells(open_front, monkeypatch):
    """Also where an earlier one is still being told."""
    async with serving(open_front) as served:
        health = served.server._health
        tell, is_told, may_tell = health.set, asyncio.Event(), asyncio.Event()

        async def slowly(service: str, state: int) -> None:
            is_told.set()
            await may_tell.wait()
            await tell(service, state)

        monkeypatch.setattr(health, "set", slowly)
        drain = asyncio.ensure_future(served.stub.Drain(pb.DrainRequest()))
        await is_told.wait()
        monkeypatch.setattr(health, "set", tell)
        resume = asyncio.ensure_future(served.stub.Resume(pb.ResumeRequest()))
        while served.front.generator.is_paused:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0)
        may_tell.set()
        await drain
        await resume

        stub = health_pb2_grpc.HealthStub(served.channel)
        for service in ("", SERVICE, "cadenza.v1.GenerationService"):
            request = health_pb2.HealthCheckRequest(service=service)
            assert (await stub.Check(request)).status == SERVING


async def test_a_drain_with_a_negative_timeout_changes_nothing(open_front):
    async with serving(open_front) as served:
        request = pb.DrainRequest()
        request.timeout.FromSeconds(-1)
        code, details = await status(served.stub.Drain(request))

        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert "must not be negative" in details
        assert not served.front.generator.is_paused


async def test_what_stops_for_good_is_not_resumed(open_front):
    async with serving(open_front) as served:
        await served.front.generator.drain(0)

        assert not (await served.stub.Resume(pb.ResumeRequest())).is_ready
        talk = Talk(served.generation)
        await talk.submit("a", text="x")
        assert (await talk.end_of("a")).failed.code == 14
