"""How a failure is told over gRPC: as the status of a call, or as an event in a Session."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Never, TypeAlias

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]
from grpc_status import rpc_status

from cadenza.service.detokenizer import encodable
from cadenza.service.errors import UNEXPECTED, GenerationFailed, RequestError, status_of
from cadenza.service.rpc.codec import field_path
from cadenza.v1 import generation_pb2 as pb

# A message may quote the client, and trailing metadata over 8 KiB reaches no client at all: it
# travels percent-encoded (up to 3 bytes each) and again, twice, within the base64 of the details.
_MAX_MESSAGE_BYTES = 1024

FieldPath: TypeAlias = Callable[[str], str]  # where a field of ours stands in the client's request

PUSHBACK = "grpc-retry-pushback-ms"  # the key that gRPC's own retry policy reads


async def abort(
    context: grpc.aio.ServicerContext[Any, Any], error: RequestError, path: FieldPath = field_path
) -> Never:
    """End the call with the error's status and rich details.

    Always raises: `AbortError`, or CancelledError where gRPC was about to cancel the call anyway,
    because the client is gone or the deadline has passed.
    """
    status = rpc_status.to_status(to_proto(error, path))
    metadata = list(status.trailing_metadata)
    if is_retryable(error) and error.retry_after_s is not None:
        metadata.append((PUSHBACK, str(round(error.retry_after_s * 1000))))
    await end(context, status.code, status.details, tuple(metadata))


async def end(
    context: grpc.aio.ServicerContext[Any, Any],
    code: grpc.StatusCode,
    message: str,
    metadata: tuple[tuple[str, str | bytes], ...] = (),
) -> Never:
    """End the call with a status that is not OK. Raises as `abort`."""
    try:
        await context.abort(code, message, metadata)
    except grpc.aio.InternalError as gone:
        raise asyncio.CancelledError from gone


def failed(request_id: str, error: RequestError) -> pb.Event:
    """The terminal event of a request that cannot go on, or never began."""
    body = pb.Failed(
        code=code_of(error).value[0],
        message=_sentence(error.message),
        field=field_path(error.field) if error.field else "",
        retryable=is_retryable(error),
        retry_after=_retry_after(error),
    )
    return pb.Event(request_id=request_id, failed=body)


def cancelled(request_id: str) -> pb.Event:
    """The terminal event of a request that its client gave up."""
    body = pb.Failed(code=grpc.StatusCode.CANCELLED.value[0], message="cancelled by the client")
    return pb.Event(request_id=request_id, failed=body)


def internal_error() -> RequestError:
    """What a client is told of an exception that nobody expected: nothing of its text."""
    return GenerationFailed(UNEXPECTED, retryable=False)


def to_proto(error: RequestError, path: FieldPath = field_path) -> status_pb2.Status:
    """The error as google.rpc.Status, with BadRequest and RetryInfo where they apply."""
    message = _sentence(error.message)
    details: list[Any] = []
    if error.field:
        violation = error_details_pb2.BadRequest.FieldViolation(
            field=path(error.field), description=message
        )
        details.append(error_details_pb2.BadRequest(field_violations=[violation]))
    if (delay := _retry_after(error)) is not None:
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    packed = [any_pb2.Any() for _ in details]
    for box, detail in zip(packed, details, strict=True):
        box.Pack(detail)
    return status_pb2.Status(code=code_of(error).value[0], message=message, details=packed)


def code_of(error: RequestError) -> grpc.StatusCode:
    """The code of `errors.status_of`."""
    return grpc.StatusCode[status_of(error).grpc]


def is_retryable(error: RequestError) -> bool:
    """Whether the same request may succeed later."""
    if isinstance(error, GenerationFailed):
        return error.retryable
    return error.retry_after_s is not None


def _retry_after(error: RequestError) -> duration_pb2.Duration | None:
    if error.retry_after_s is None or not is_retryable(error):
        return None
    duration = duration_pb2.Duration()
    duration.FromTimedelta(timedelta(seconds=error.retry_after_s))
    return duration


def _sentence(message: str) -> str:
    """`message`, short enough to arrive."""
    text = encodable(message)
    encoded = text.encode()
    if len(encoded) <= _MAX_MESSAGE_BYTES:
        return text
    return encoded[: _MAX_MESSAGE_BYTES - 3].decode(errors="ignore") + "…"
