"""Unary calls for administrators: who may make them, and how they fail."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

import grpc
import structlog
from google.protobuf.message import Message

from cadenza.service.admin import AdminAccess
from cadenza.service.errors import RequestError
from cadenza.service.rpc import status
from cadenza.service.rpc.servicer import Context

Call = Callable[[bytes], Awaitable[Message]]

_log = structlog.get_logger(__name__)


def admin_handlers(
    service: str, access: AdminAccess, calls: Mapping[str, Call]
) -> grpc.GenericRpcHandler:
    """What a server needs to route the service's methods to `calls`, by their names.

    Each call gets the bytes of its request, once its caller has been checked.
    """
    methods: dict[str, grpc.RpcMethodHandler[bytes, Message]] = {
        name: grpc.unary_unary_rpc_method_handler(
            _guarded(access, call), response_serializer=_serialised
        )
        for name, call in calls.items()
    }
    return grpc.method_handlers_generic_handler(service, methods)


def _guarded(access: AdminAccess, call: Call) -> Callable[[bytes, Context], Awaitable[Message]]:
    """Check the caller, run the call, and tell what it raises as a status."""

    async def guarded(encoded: bytes, context: Context) -> Message:
        try:
            _check(access, context)
            return await call(encoded)
        except RequestError as error:
            await status.abort(context, error)
        except Exception:
            _log.exception("call_failed")
            await status.abort(context, status.internal_error())

    return guarded


def _serialised(message: Message) -> bytes:
    return message.SerializeToString()


def _check(access: AdminAccess, context: Context) -> None:
    access.check(
        (name, value if isinstance(value, str) else value.decode(errors="replace"))
        for name, value in context.invocation_metadata() or ()
    )
