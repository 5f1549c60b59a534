"""What vLLM's service tells of itself, and that it is there only where it can be."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from importlib import metadata

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)
from structlog.testing import capture_logs

pytest.importorskip("smg_grpc_proto")

from smg_grpc_proto.generated import common_pb2
from smg_grpc_proto.generated import vllm_engine_pb2 as pb

from cadenza.service.admin import Admin, AdminAccess
from cadenza.service.rpc import vllm
from cadenza.service.rpc.vllm import fields
from cadenza.wire.messages import ResetPrefixCache
from tests.service.rpc.vllm.asking import request_of
from tests.service.waiting import until

SERVING = health_pb2.HealthCheckResponse.SERVING
METHODS = {method.name: method for method in pb.DESCRIPTOR.services_by_name["VllmEngine"].methods}
UNSERVED = ("Embed", "StartProfile", "StopProfile", "SubscribeKvEvents")


async def failure(call) -> grpc.aio.AioRpcError:
    """The error that a call ends with."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await (call.read() if hasattr(call, "read") else call)
    return caught.value


async def test_health_says_whether_a_request_would_be_served(serve_vllm):
    async with serve_vllm(ready=False) as served:
        told = []

        async def ask() -> None:
            told.append(await served.stub.HealthCheck(pb.HealthCheckRequest()))

        await ask()
        served.front.engine.become_ready()
        await served.front.client.ready()
        await ask()
        served.front.generator.pause()
        await ask()
        served.front.engine.die()
        await served.front.client.lost()
        await ask()

        assert [each.healthy for each in told] == [False, True, False, False]
        assert [each.message for each in told] == [
            "The engine loads the model.",
            "ready",
            "The service takes no further requests for now.",
            "The engine is gone.",
        ]


async def test_the_standard_health_service_knows_it(serve_vllm):
    async with serve_vllm() as served:
        await served.server.set_ready(True)
        stub = health_pb2_grpc.HealthStub(served.channel)
        told = await stub.Check(health_pb2.HealthCheckRequest(service=vllm.SERVICE))

        assert told.status == SERVING


async def test_the_model_is_described(serve_vllm):
    async with serve_vllm() as served:
        told = await served.stub.GetModelInfo(pb.GetModelInfoRequest())

        assert told == pb.GetModelInfoResponse(
            model_path="tiny",
            served_model_name="tiny",
            is_generation=True,
            max_context_length=256,
            max_req_input_len=256,
            vocab_size=served.front.tokenizer.vocab_size,
            eos_token_ids=[served.front.engine.eos],
        )


async def test_the_server_is_described(serve_vllm):
    async with serve_vllm() as served:
        served.front.engine.auto = False
        call = served.stub.Generate(request_of())
        await served.front.engine.until(lambda: bool(served.front.engine.waiting))
        served.front.generator.pause()
        told = await served.stub.GetServerInfo(pb.GetServerInfoRequest())
        call.cancel()
        await until(lambda: served.front.generator.is_idle)

        assert (told.active_requests, told.is_paused) == (1, True)
        assert told.uptime_seconds > 0
        assert (told.server_type, told.data_parallel_size) == ("vllm-grpc", 1)
        assert (told.block_size, told.model_dtype, told.max_num_seqs) == (16, "torch.float32", 64)


async def test_the_load_is_what_the_scheduler_told_last(serve_vllm):
    async with serve_vllm() as served:
        served.front.engine.told_counters = {
            "running": 3,
            "waiting": 2,
            "total_blocks": 64,
            "free_blocks": 32,
            "cached_blocks": 16,
        }
        await served.ask(max_tokens=1)
        told = await served.stub.GetLoads(pb.GetLoadsRequest(include=["core"], dp_rank=0))

        assert told.dp_rank_count == 1
        assert told.loads == [
            pb.SchedulerLoad(
                num_running_reqs=3,
                num_waiting_reqs=2,
                num_total_reqs=5,
                num_used_tokens=256,
                max_total_num_tokens=1024,
                token_usage=0.25,
                utilization=0.25,
                cache_hit_rate=0.4,
                max_running_requests=64,
            )
        ]


async def test_there_is_one_rank(serve_vllm):
    async with serve_vllm() as served:
        error = await failure(served.stub.GetLoads(pb.GetLoadsRequest(dp_rank=1)))

        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert error.details() == "dp_rank is 1; there is one rank, 0."


@pytest.mark.parametrize("method", ["GetModelInfo", "GetServerInfo", "GetLoads"])
async def test_before_the_model_is_loaded_nothing_is_made_up(serve_vllm, method):
    async with serve_vllm(ready=False) as served:
        kind = getattr(pb, f"{method}Request")
        error = await failure(getattr(served.stub, method)(kind()))

        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert error.details() == "The engine loads the model; ask again."


async def test_an_administrator_may_forget_the_prefix_cache(serve_vllm):
    def admin(front):
        return Admin(front.control, AdminAccess("secret", is_local=True))

    async with serve_vllm(admin) as served:
        request = common_pb2.FlushCacheRequest()
        error = await failure(served.stub.FlushCache(request))
        assert error.code() is grpc.StatusCode.UNAUTHENTICATED
        told = await served.stub.FlushCache(request, metadata=[("authorization", "Bearer secret")])

        assert told.success
        resets = [each for each in served.front.engine.received if each == ResetPrefixCache()]
        assert len(resets) == 1


async def test_where_nobody_administers_nobody_forgets_the_prefix_cache(serve_vllm):
    async with serve_vllm() as served:
        error = await failure(served.stub.FlushCache(common_pb2.FlushCacheRequest()))

        assert error.code() is grpc.StatusCode.PERMISSION_DENIED


@pytest.mark.parametrize("method", UNSERVED)
async def test_what_there_is_not_is_unimplemented_with_a_reason(serve_vllm, method):
    async with serve_vllm() as served:
        kind = METHODS[method].input_type._concrete_class
        error = await failure(getattr(served.stub, method)(kind()))

        assert error.code() is grpc.StatusCode.UNIMPLEMENTED
        assert error.details().startswith(f"{method} is not served: ")


@pytest.mark.parametrize("method", sorted(METHODS.keys() - set(UNSERVED)))
async def test_bytes_that_are_no_message_are_the_clients_fault(serve_vllm, method):
    async with serve_vllm() as served:
        path = f"/{vllm.SERVICE}/{method}"
        is_stream = METHODS[method].server_streaming
        stream = served.channel.unary_stream if is_stream else served.channel.unary_unary
        error = await failure(stream(path)(b"\xff\xff"))

        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert error.details() == f"the bytes are not a {METHODS[method].input_type.full_name}"


async def test_a_mistake_of_ours_is_logged_and_not_told(serve_vllm, monkeypatch):
    async with serve_vllm() as served:
        monkeypatch.setattr(vllm.servicer.info, "health", lambda _: {}["secret"])
        with capture_logs() as logs:
            error = await failure(served.stub.HealthCheck(pb.HealthCheckRequest()))

        assert error.code() is grpc.StatusCode.INTERNAL
        assert "secret" not in error.details()
        assert [log["event"] for log in logs] == ["call_failed"]


def services_told(port: int) -> list[str]:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        listed = list(database.get_services())
        for service in listed:
            database.FindFileContainingSymbol(service)
        return listed


async def test_reflection_lists_and_describes_it(serve_vllm):
    async with serve_vllm() as served:
        assert vllm.SERVICE in served.server.services
        assert vllm.SERVICE in await asyncio.to_thread(services_told, served.port)


async def test_without_the_package_it_is_not_there(serve_vllm, monkeypatch):
    monkeypatch.setattr(vllm, "_PACKAGE", "smg_grpc_proto_that_is_not_installed")
    async with serve_vllm() as served:
        assert vllm.SERVICE not in served.server.services
        assert vllm.SERVICE not in await asyncio.to_thread(services_told, served.port)
        error = await failure(served.stub.HealthCheck(pb.HealthCheckRequest()))
        assert error.code() is grpc.StatusCode.UNIMPLEMENTED


def why_unserved() -> str:
    """The reason that is logged."""
    with capture_logs() as logs:
        assert vllm.open_handlers(None, None, None) is None
    [log] = logs
    assert (log["event"], log["log_level"]) == ("vllm grpc is not served", "warning")
    return str(log["reason"])


def test_a_package_that_cannot_be_used_is_logged_and_keeps_nothing_from_starting(monkeypatch):
    monkeypatch.delattr(vllm, "servicer", raising=False)
    monkeypatch.setitem(sys.modules, "cadenza.service.rpc.vllm.servicer", None)

    assert "cadenza.service.rpc.vllm.servicer" in why_unserved()


def test_a_package_that_has_not_all_that_is_used_is_of_no_use(monkeypatch):
    monkeypatch.setitem(fields.SERVED, "SamplingParams", frozenset({"seed", "mood", "age"}))
    monkeypatch.setitem(fields._USED, "Weather", {"rain"})
    monkeypatch.setattr(fields, "_METHODS", {"Abort", "Dance"})

    told = "it has no Dance, SamplingParams.age, SamplingParams.mood, Weather; another version may"
    assert why_unserved() == told


def test_what_fails_as_the_service_is_made_keeps_nothing_from_starting(monkeypatch):
    monkeypatch.setattr(vllm.servicer.VllmServicer, "handlers", lambda _: {}["Generate"])

    assert "Generate" in why_unserved()


async def test_the_version_is_not_looked_up_again_and_again(serve_vllm, monkeypatch):
    async with serve_vllm() as served:
        monkeypatch.setattr(metadata.Distribution, "from_name", lambda name: {}[name])
        told = await served.stub.GetLoads(pb.GetLoadsRequest())

        assert told.version == vllm.info._VERSION


def test_without_the_package_nothing_of_it_is_imported():
    code = (
        "import sys; from cadenza.service.rpc import GrpcServer; "
        "print([name for name in sys.modules if 'smg' in name or '.rpc.vllm.' in name])"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True
    )

    assert done.stdout == "[]\n"
