"""The boundary between gRPC and the calls, with a context under the test's control."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import grpc
import pytest
from structlog.testing import capture_logs

from cadenza.service.errors import DeadlineExceeded
from cadenza.service.rpc.servicer import GenerationServicer
from cadenza.service.rpc.unknown import UnknownMethods


class GoneClient:
    """A context whose client has left, before gRPC has cancelled the call."""

    def __init__(self) -> None:
        self.aborts: list[object] = []

    def time_remaining(self) -> None:
        return None

    def invocation_metadata(self) -> None:
        return None

    async def write(self, message: object) -> None:
        raise grpc.aio.InternalError

    async def abort(self, *arguments: object) -> None:
        self.aborts.append(arguments)
        raise grpc.aio.InternalError


async def test_a_write_to_a_client_that_is_gone_ends_as_a_cancel(generator, request_of):
    context = GoneClient()
    request = request_of("a").SerializeToString()
    with capture_logs() as logs, pytest.raises(asyncio.CancelledError):
        await GenerationServicer(generator).generate(request, context)

    assert generator.generations["a"].cancelled.is_set()
    assert logs == []
    assert context.aborts == []


async def test_a_session_with_a_client_that_is_gone_ends_as_a_cancel(generator, submit_of):
    async def actions():
        yield submit_of("a").SerializeToString()
        await asyncio.Event().wait()

    context = GoneClient()
    with capture_logs() as logs, pytest.raises(asyncio.CancelledError):
        await GenerationServicer(generator).session(actions(), context)

    assert generator.generations["a"].cancelled.is_set()
    assert logs == []
    assert context.aborts == []


async def test_a_client_that_is_gone_before_it_is_told_of_a_method_ends_as_a_cancel():
    handler = UnknownMethods(["x.Y"]).service(SimpleNamespace(method="/x.Y/Z"))
    context = GoneClient()
    with pytest.raises(asyncio.CancelledError):
        await handler.stream_stream(None, context)

    assert len(context.aborts) == 1


@pytest.mark.parametrize("error", [DeadlineExceeded(), ValueError("a bug")])
async def test_a_client_that_is_gone_before_it_is_told_of_a_failure_ends_as_a_cancel(
    generator, request_of, error
):
    generator.errors["a"] = error
    context = GoneClient()
    request = request_of("a").SerializeToString()
    with capture_logs() as logs, pytest.raises(asyncio.CancelledError):
        await GenerationServicer(generator).generate(request, context)

    assert len(context.aborts) == 1
    assert [log["event"] for log in logs] == ["call_failed"] * isinstance(error, ValueError)
