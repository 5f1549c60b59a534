"""The policy service as gRPC calls it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import structlog
from google.protobuf.message import Message

from cadenza.service.admin import Admin
from cadenza.service.errors import InvalidRequest, RequestError
from cadenza.service.policy_control import MAX_PROFILE_BYTES
from cadenza.service.rpc import status
from cadenza.service.rpc.policy_codec import to_content, to_report
from cadenza.service.rpc.servicer import Context, decode
from cadenza.v1 import policy_pb2 as pb

SERVICE: str = pb.DESCRIPTOR.services_by_name["PolicyService"].full_name

_log = structlog.get_logger(__name__)


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
        methods: dict[str, grpc.RpcMethodHandler[bytes, Any]] = {
            name: grpc.unary_unary_rpc_method_handler(
                self._guarded(call, response), response_serializer=response.SerializeToString
            )
            for name, (call, response) in calls.items()
        }
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    def _guarded(
        self, call: Callable[[bytes], Awaitable[None]], response: type[Any]
    ) -> Callable[[bytes, Context], Awaitable[Message]]:
        """Check the caller, run the call, and tell what it raises as a status."""

        async def guarded(encoded: bytes, context: Context) -> Message:
            try:
                self._check(context)
                await call(encoded)
                answer: Message = response(report=to_report(await self._policies.describe()))
                return answer
            except RequestError as error:
                await status.abort(context, error)
            except Exception:
                _log.exception("call_failed")
                await status.abort(context, status.internal_error())

        return guarded

    def _check(self, context: Context) -> None:
        self._access.check(
            (name, value if isinstance(value, str) else value.decode(errors="replace"))
            for name, value in context.invocation_metadata() or ()
        )

    async def _get(self, encoded: bytes) -> None:
        decode(pb.GetPoliciesRequest, encoded)

    async def _use(self, encoded: bytes) -> None:
        request = decode(pb.UseProfileRequest, _bounded(encoded))
        if not request.HasField("profile"):
            raise InvalidRequest("profile is required")
        await self._policies.use(to_content(request.profile))

    async def _release(self, encoded: bytes) -> None:
        request = decode(pb.ReleasePolicyRequest, _bounded(encoded))
        if not request.name:
            raise InvalidRequest("name is required")
        await self._policies.release(request.name)

    async def _shadow(self, encoded: bytes) -> None:
        request = decode(pb.UseShadowRequest, _bounded(encoded))
        profile = to_content(request.profile) if request.HasField("profile") else None
        await self._policies.shadow(profile)


def _bounded(encoded: bytes) -> bytes:
    if len(encoded) > MAX_PROFILE_BYTES:
        raise InvalidRequest(f"the message is larger than {MAX_PROFILE_BYTES} bytes")
    return encoded
