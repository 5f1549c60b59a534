"""The policy service as gRPC calls it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.message import Message

from cadenza.service.admin import Admin
from cadenza.service.errors import InvalidRequest
from cadenza.service.policy_control import MAX_PROFILE_BYTES
from cadenza.service.rpc.admin_calls import Call, admin_handlers
from cadenza.service.rpc.policy_codec import to_content, to_report
from cadenza.service.rpc.servicer import decode
from cadenza.v1 import policy_pb2 as pb

SERVICE: str = pb.DESCRIPTOR.services_by_name["PolicyService"].full_name


class PolicyServicer:
    """Serves administrators. Every call answers with the report that holds after it."""

    def __init__(self, admin: Admin) -> None:
        self._policies, self._access = admin.policies, admin.access

    def handlers(self) -> grpc.GenericRpcHandler:
        """What a server needs to route the service's methods here."""
        calls: dict[str, tuple[Callable[[bytes], Awaitable[None]], type[Any]]] = {
            "GetPolicies": (self._get, pb.GetPoliciesResponse),
            "UseProfile": (self._use, pb.UseProfileResponse),
            "ReleasePolicy": (self._release, pb.ReleasePolicyResponse),
            "UseShadow": (self._shadow, pb.UseShadowResponse),
        }
        reporting = {name: self._reporting(*call) for name, call in calls.items()}
        return admin_handlers(SERVICE, self._access, reporting)

    def _reporting(self, call: Callable[[bytes], Awaitable[None]], response: type[Any]) -> Call:
        async def reporting(encoded: bytes) -> Message:
            await call(encoded)
            answer: Message = response(report=to_report(await self._policies.describe()))
            return answer

        return reporting

    async def _get(self, encoded: bytes) -> None:
        decode(pb.GetPoliciesRequest, encoded)

    async def _use(self, encoded: bytes) -> None:
        request = decode(pb.UseProfileRequest, _bounded(encoded))
        if not request.HasField("profile"):
            raise InvalidRequest("profile is required", "profile")
        await self._policies.use(to_content(request.profile))

    async def _release(self, encoded: bytes) -> None:
        request = decode(pb.ReleasePolicyRequest, _bounded(encoded))
        if not request.name:
            raise InvalidRequest("name is required", "name")
        await self._policies.release(request.name)

    async def _shadow(self, encoded: bytes) -> None:
        request = decode(pb.UseShadowRequest, _bounded(encoded))
        profile = to_content(request.profile) if request.HasField("profile") else None
        await self._policies.shadow(profile)


def _bounded(encoded: bytes) -> bytes:
    if len(encoded) > MAX_PROFILE_BYTES:
        raise InvalidRequest(f"the message is larger than {MAX_PROFILE_BYTES} bytes")
    return encoded
