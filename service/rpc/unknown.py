"""What calls are told that name no method of ours: gRPC itself says nothing of what there is."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import grpc

from cadenza.service.rpc import status
from cadenza.service.rpc.servicer import Context

_MAX_NAME_CHARS = 200


class UnknownMethods(grpc.GenericRpcHandler):
    """Takes whatever no other handler has taken; the last of a server's handlers."""

    def __init__(self, services: Sequence[str]) -> None:
        """`services`: the full names of those that there are."""
        self._services = ", ".join(services)

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[bytes, bytes]:
        name = handler_call_details.method[:_MAX_NAME_CHARS]

        async def refuse(requests: AsyncIterator[bytes], context: Context) -> None:
            message = f"There is no method {name!r} here; the services are {self._services}."
            await status.end(context, grpc.StatusCode.UNIMPLEMENTED, message)

        return grpc.stream_stream_rpc_method_handler(refuse)
