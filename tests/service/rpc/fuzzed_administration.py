"""Random and hostile calls of an administrator, and what must hold of their answers."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from cadenza.v1 import admin_pb2, policy_pb2
from tests.service.rpc.fuzz_checks import LIMIT_S
from tests.service.rpc.fuzzer import Fuzzer

METHODS: dict[str, MethodDescriptor] = {
    method.name: method
    for file in (admin_pb2, policy_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}
# What takes back what a call may have changed
_BACK: dict[str, tuple[str, Message]] = {
    "Drain": ("Resume", admin_pb2.ResumeRequest()),
    "UseShadow": ("UseShadow", policy_pb2.UseShadowRequest()),
    "UseProfile": ("UseProfile", policy_pb2.UseProfileRequest(profile=policy_pb2.Profile())),
}
# Nothing else may come of a call that is waited for
_ALLOWED = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.ABORTED,  # another change of policies is under way
}


class Administrator:
    """Calls what administrators may call. What it changes it takes back in `restore`."""

    def __init__(self, channel: grpc.aio.Channel, seen: Counter[str]) -> None:
        self.ids: deque[str] = deque(maxlen=20)  # of generations that the service knows
        self._changed: set[str] = set()  # methods of `_BACK` called since `restore`
        self._channel = channel
        self._seen = seen

    @property
    def has_drained(self) -> bool:
        """Whether requests may have been refused since `restore`."""
        return "Drain" in self._changed

    async def call(self, seed: int) -> None:
        """One call, waited for or given up; whoever drains takes requests again."""
        fuzzer = Fuzzer(seed)
        chance = fuzzer.chance
        method = chance.choice([*METHODS.values()])
        message = fuzzer.message(GetMessageClass(method.input_type))
        if method.name == "GetTimeline" and self.ids and chance.random() < 0.8:
            message.id = chance.choice(self.ids)
        encoded = message.SerializeToString()
        if chance.random() < 0.1:
            encoded = fuzzer.garbled(encoded)
        timeout_s = chance.choice((None, None, None, None, None, 0.002, 5.0))
        gives_up = chance.random() < 0.1
        allowed = _ALLOWED | ({grpc.StatusCode.CANCELLED} if gives_up else set())
        allowed |= {grpc.StatusCode.DEADLINE_EXCEEDED} if timeout_s else set()

        if method.name in _BACK:
            self._changed.add(method.name)
        async with asyncio.timeout(LIMIT_S):
            call = self._begin(method, encoded, timeout_s)
            for _ in range(chance.randint(0, 3)):
                await self._ask("GetLoad")
            if gives_up:
                call.cancel()
            if method.name == "Drain":
                await self._resume_until_over(call)
            code = await call.code()
        self._seen[f"{method.name} {code.name}"] += 1
        assert code in allowed, f"{method.name}: {code}: {await call.details()}"
        if code is grpc.StatusCode.OK:
            _check(method, await call)
        else:
            assert await call.details()

    async def restore(self) -> None:
        """Requests are taken, and the default policies alone are asked."""
        async with asyncio.timeout(LIMIT_S):
            for name in self._changed:
                await self._take_back(*_BACK[name])
            snapshot = await self._ask("GetSnapshot")
        assert snapshot.is_ready
        assert not snapshot.is_draining
        self._changed.clear()

    async def _resume_until_over(self, drain: Any) -> None:
        """Until it has answered, and once after: it may be handled behind the first of them."""
        while not drain.done():
            await self._ask("Resume")
        await self._ask("Resume")

    async def _take_back(self, name: str, message: Message) -> None:
        """Once the change of policies has ended whose caller has left."""
        while True:
            try:
                await self._ask(name, message)
                return
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.ABORTED:
                    raise

    async def _ask(self, name: str, message: Message | None = None) -> Any:
        encoded = b"" if message is None else message.SerializeToString()
        return await self._begin(METHODS[name], encoded, None)

    def _begin(self, method: MethodDescriptor, encoded: bytes, timeout_s: float | None) -> Any:
        call = self._channel.unary_unary(
            f"/{method.containing_service.full_name}/{method.name}",
            response_deserializer=GetMessageClass(method.output_type).FromString,
        )
        return call(encoded, timeout=timeout_s)


def _check(method: MethodDescriptor, answer: Any) -> None:
    """What is answered is whole."""
    match method.name:
        case "GetSnapshot":
            assert answer.engine.total_blocks
            assert len(answer.requests) <= answer.num_requests
        case "GetTimeline":
            assert answer.request.id
            assert answer.records
        case "GetPolicies" | "UseProfile" | "ReleasePolicy" | "UseShadow":
            assert answer.report.live.decisions
            assert answer.report.installed
