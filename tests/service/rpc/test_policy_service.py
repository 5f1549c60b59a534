"""PolicyService over a real channel, with a fake engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from google.protobuf.json_format import ParseDict
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from cadenza.policies.builtin import BUILTIN
from cadenza.service.admin import Admin, AdminAccess
from cadenza.service.policy_control import MAX_PROFILE_BYTES
from cadenza.service.rpc import GrpcServer
from cadenza.v1 import policy_pb2 as pb
from cadenza.v1.policy_pb2_grpc import PolicyServiceStub
from cadenza.wire.policies import HookFaults

from ..conftest import Front, OpenFront
from .talking import refused_field

KEY = (("authorization", "Bearer s3cret"),)
NAME = "cadenza.v1.PolicyService"


class Served:
    def __init__(self, front: Front, server: GrpcServer, channel: grpc.aio.Channel) -> None:
        self.front = front
        self.server = server
        self.channel = channel
        self.stub = PolicyServiceStub(channel)

    async def use(self, content: dict[str, Any]) -> pb.PolicyReport:
        return (await self.stub.UseProfile(profile(content))).report

    async def get(self) -> pb.PolicyReport:
        return (await self.stub.GetPolicies(pb.GetPoliciesRequest())).report


@asynccontextmanager
async def serving(
    open_front: OpenFront, key: str | None = None, *, is_local: bool = True, **options: Any
) -> AsyncIterator[Served]:
    async with open_front(**options) as front:
        admin = Admin(front.control, AdminAccess(key, is_local=is_local))
        server = GrpcServer(front.generator, admin, port=0)
        port = await server.start()
        try:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                yield Served(front, server, channel)
        finally:
            await server.stop(0)


def profile(content: dict[str, Any]) -> pb.UseProfileRequest:
    return ParseDict({"profile": content}, pb.UseProfileRequest())


async def status(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), caught.value.details()


async def test_a_profile_is_used_and_reported(open_front: OpenFront):
    async with serving(open_front) as served:
        engine = served.front.engine
        engine.hook_faults = (
            HookFaults("priority", "order_admissions", 3, "ValueError('no')", 2.5, 4, 1),
        )
        engine.quarantined = ("priority",)
        report = await served.use(
            {
                "preset": "priority",
                "decisions": {"reserve": {"names": ["none"]}, "guard": {"names": ["max-wait"]}},
                "options": {"priority": {"aging_s": 5}},
            }
        )

        assert report == await served.get()
        assert engine.policies.options == {"priority": {"aging_s": 5}}
        assert type(engine.policies.options["priority"]["aging_s"]) is int
        assert report.live.preset == "priority"
        assert report.live.decisions["reserve_blocks"].names == ["none"]
        assert report.live.decisions["guard_starvation"].names == ["max-wait"]
        assert dict(report.live.options["priority"]) == {"aging_s": 5}
        (faults,) = report.live.faults
        assert (faults.policy, faults.hook, faults.faults) == ("priority", "order_admissions", 3)
        assert faults.process == "engine"
        assert (faults.last_fault_age_s, faults.passed_over, faults.excused) == (2.5, 4, 1)
        assert report.live.quarantined == ["priority"]
        assert [each.name for each in report.installed] == sorted(BUILTIN)
        assert report.installed[0].source == "built in"
        assert not report.HasField("shadow")


async def test_release_and_shadow(open_front: OpenFront):
    async with serving(open_front) as served:
        served.front.engine.quarantined = ("fcfs",)
        released = await served.stub.ReleasePolicy(pb.ReleasePolicyRequest(name="fcfs"))
        assert released.report.live.quarantined == []

        slo = pb.UseShadowRequest(profile=pb.Profile(preset="slo"))
        shadow = (await served.stub.UseShadow(slo)).report.shadow
        assert shadow.profile.preset == "slo"
        comparison, *ours = shadow.comparisons
        assert (comparison.process, *{each.process for each in ours}) == ("engine", "front")
        assert (comparison.asked, comparison.unanswered, comparison.differed) == (8, 1, 3)
        assert (comparison.first_differed, comparison.mean) == (2, 0.25)
        gone = await served.stub.UseShadow(pb.UseShadowRequest())
        assert not gone.report.HasField("shadow")


async def test_an_empty_profile_is_all_defaults_and_a_missing_one_is_refused(open_front: OpenFront):
    async with serving(open_front) as served:
        await served.use({"preset": "slo"})
        assert (await served.use({})).live.decisions == {}
        code, message = await status(served.stub.UseProfile(pb.UseProfileRequest()))
        assert (code, message) == (grpc.StatusCode.INVALID_ARGUMENT, "profile is required")
        assert await refused_field(served.stub.UseProfile(pb.UseProfileRequest())) == "profile"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"preset": "fifo"}, "there is no preset 'fifo'"),
        ({"decisions": {"order": {"names": ["lifo"]}}}, "there is no policy 'lifo'"),
        ({"options": {"bounded-overtake": {"x": "y"}}}, "takes no options"),
        ({"preset": "x" * MAX_PROFILE_BYTES}, "the message is larger than 65536 bytes"),
    ],
)
async def test_bad_input(open_front: OpenFront, content: dict[str, Any], message: str):
    async with serving(open_front) as served:
        code, told = await status(served.stub.UseProfile(profile(content)))
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert message in told
        assert (await served.get()).live.preset == ""


@pytest.mark.parametrize("character", ["x", "漢", "🐉"])
async def test_long_refusals_arrive(open_front: OpenFront, character: str):
    async with serving(open_front) as served:
        names = {f"{character * 70}{index}": {"names": ["fcfs"]} for index in range(30)}
        code, told = await status(served.stub.UseProfile(profile({"decisions": names})))
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert told.startswith(f"30 faults:\n  - profile: there is no decision '{character}")
        assert told.endswith("…")


@pytest.mark.parametrize(
    ("number", "told"),
    [
        (float("inf"), "aging_s is inf, and JSON has no such number"),
        (float("nan"), "aging_s is nan, and JSON has no such number"),
        (2.0**70, "the report"),
        (1e300, "the report"),
    ],
)
async def test_numbers_that_are_hard_to_carry(open_front: OpenFront, number: float, told: str):
    async with serving(open_front) as served:
        request = pb.UseProfileRequest(profile=pb.Profile(preset="priority"))
        request.profile.options["priority"].update({"aging_s": number})
        if told == "the report":
            report = (await served.stub.UseProfile(request)).report
            assert report.live.options["priority"]["aging_s"] == number
            assert served.front.engine.policies.options == {"priority": {"aging_s": number}}
        else:
            code, message = await status(served.stub.UseProfile(request))
            assert code is grpc.StatusCode.INVALID_ARGUMENT
            assert told in message


async def test_bytes_that_are_no_message(open_front: OpenFront):
    async with serving(open_front) as served:
        for method in ("GetPolicies", "UseProfile", "ReleasePolicy", "UseShadow"):
            call = served.channel.unary_unary(f"/{NAME}/{method}")
            code, told = await status(call(b"\xff\xff"))
            assert code is grpc.StatusCode.INVALID_ARGUMENT
            assert "the bytes are not a cadenza.v1." in told


async def test_unknown_policies_and_those_without_a_name(open_front: OpenFront):
    async with serving(open_front) as served:
        code, told = await status(served.stub.ReleasePolicy(pb.ReleasePolicyRequest(name="lifo")))
        assert code is grpc.StatusCode.NOT_FOUND
        assert "'lifo' is not in use" in told
        code, told = await status(served.stub.ReleasePolicy(pb.ReleasePolicyRequest()))
        assert (code, told) == (grpc.StatusCode.INVALID_ARGUMENT, "name is required")
        assert await refused_field(served.stub.ReleasePolicy(pb.ReleasePolicyRequest())) == "name"


async def test_an_engine_that_hangs_is_unavailable(open_front: OpenFront):
    async with serving(open_front, patience_s=0.01) as served:
        served.front.engine.answers_changes = False
        code, told = await status(served.stub.UseProfile(profile({"preset": "slo"})))
        assert (code, "within 0.01 s" in told) == (grpc.StatusCode.UNAVAILABLE, True)


async def test_a_conflict_is_aborted(open_front: OpenFront):
    async with serving(open_front) as served:
        served.front.engine.answers_changes = False
        first = served.stub.UseProfile(profile({"preset": "slo"}))
        await served.front.engine.until(lambda: bool(served.front.engine.received))
        code, _ = await status(served.stub.UseProfile(profile({})))
        assert code is grpc.StatusCode.ABORTED
        served.front.engine.answer_change(served.front.engine.received[-1])  # type: ignore[arg-type]
        assert (await first).report.live.preset == "slo"


CALLS: list[tuple[str, Any]] = [
    ("GetPolicies", pb.GetPoliciesRequest()),
    ("UseProfile", pb.UseProfileRequest(profile=pb.Profile())),
    ("ReleasePolicy", pb.ReleasePolicyRequest(name="fcfs")),
    ("UseShadow", pb.UseShadowRequest()),
]


@pytest.mark.parametrize(("method", "request_"), CALLS)
async def test_every_call_is_guarded(open_front: OpenFront, method: str, request_: Any):
    async with serving(open_front, "s3cret") as served:
        call = getattr(served.stub, method)
        code, told = await status(call(request_))
        assert (code, "is missing" in told) == (grpc.StatusCode.UNAUTHENTICATED, True)
        wrong = (("authorization", "Bearer x"),)
        code, _ = await status(call(request_, metadata=wrong))
        assert code is grpc.StatusCode.UNAUTHENTICATED
        code, told = await status(call(request_, metadata=(*KEY, ("origin", "http://localhost"))))
        assert (code, "Web pages" in told) == (grpc.StatusCode.PERMISSION_DENIED, True)
        code, told = await status(call(request_, metadata=(*wrong, *KEY)))
        assert (code, "several" in told) == (grpc.StatusCode.UNAUTHENTICATED, True)
        await call(request_, metadata=KEY)
    async with serving(open_front, is_local=False) as served:
        code, told = await status(getattr(served.stub, method)(request_))
        assert code is grpc.StatusCode.PERMISSION_DENIED
        assert "Other machines can reach this service" in told
    async with serving(open_front) as served:
        passed_on = (("x-forwarded-for", "192.0.2.7"),)
        code, told = await status(getattr(served.stub, method)(request_, metadata=passed_on))
        assert code is grpc.StatusCode.PERMISSION_DENIED
        assert "`x-forwarded-for`" in told


async def test_it_is_in_health_and_reflection(open_front: OpenFront):
    async with serving(open_front) as served:
        health = health_pb2_grpc.HealthStub(served.channel)
        states = []
        for is_ready in (False, True):
            await served.server.set_ready(is_ready)
            states.append((await health.Check(health_pb2.HealthCheckRequest(service=NAME))).status)
        serving_state = health_pb2.HealthCheckResponse
        assert states == [serving_state.NOT_SERVING, serving_state.SERVING]

        async def ask() -> AsyncIterator[reflection_pb2.ServerReflectionRequest]:
            yield reflection_pb2.ServerReflectionRequest(list_services="")

        answers = reflection_pb2_grpc.ServerReflectionStub(served.channel)
        answer = await anext(aiter(answers.ServerReflectionInfo(ask())))
        assert NAME in [each.name for each in answer.list_services_response.service]
