"""Errors to codes and details, without a server."""

from __future__ import annotations

from types import SimpleNamespace
from urllib.parse import quote

import grpc
import pytest

from cadenza.service.errors import (
    DeadlineExceeded,
    EngineUnavailable,
    GenerationFailed,
    InvalidRequest,
    Overloaded,
    RequestError,
    UnknownModel,
)
from cadenza.service.rpc import status
from cadenza.service.rpc.codec import to_request
from cadenza.service.rpc.servicer import SERVICE, GenerationServicer
from cadenza.v1 import generation_pb2 as pb

ERRORS = [
    (InvalidRequest("wrong", field="top_p"), "INVALID_ARGUMENT", False),
    (InvalidRequest("wrong"), "INVALID_ARGUMENT", False),
    (UnknownModel("no"), "NOT_FOUND", False),
    (Overloaded("full", retry_after_s=2.0), "RESOURCE_EXHAUSTED", True),
    (DeadlineExceeded(), "DEADLINE_EXCEEDED", False),
    (EngineUnavailable("starting"), "UNAVAILABLE", True),
    (GenerationFailed("lost", retryable=True), "UNAVAILABLE", True),
    (GenerationFailed("broken", retryable=False), "INTERNAL", False),
]


@pytest.mark.parametrize(("error", "code", "retryable"), ERRORS)
def test_a_session_is_told_the_code_that_generate_ends_with(error, code, retryable):
    event = status.failed("a", error)

    assert event.request_id == "a"
    assert event.failed.code == status.to_proto(error).code == grpc.StatusCode[code].value[0]
    assert event.failed.retryable is retryable
    assert event.failed.HasField("retry_after") is retryable


def test_the_wait_before_a_retry_is_exact():
    event = status.failed("a", Overloaded("full", retry_after_s=0.25))

    assert event.failed.retry_after.ToMilliseconds() == 250


def test_a_lone_surrogate_in_a_message_can_be_sent():
    assert status.failed("a", InvalidRequest("no '\udcaf'")).failed.message == "no '\ufffd'"


def test_an_unexpected_error_tells_nothing():
    error = status.internal_error()

    assert isinstance(error, RequestError)
    assert status.failed("a", error).failed == pb.Failed(
        code=13, message="Something went wrong in the server."
    )


def test_every_method_of_the_service_is_served():
    handlers = GenerationServicer(generator=None).handlers()
    for method in pb.DESCRIPTOR.services_by_name["GenerationService"].methods:
        call = SimpleNamespace(method=f"/{SERVICE}/{method.name}", invocation_metadata=())
        handler = handlers.service(call)

        assert handler is not None, method.name
        assert handler.request_streaming == method.client_streaming
        assert handler.response_streaming == method.server_streaming


def test_every_input_field_is_read():
    """A field added to the proto must be mapped, or it would be accepted and do nothing."""
    for field in pb.GenerationInput.DESCRIPTOR.fields:
        message = pb.GenerationInput()
        if field.message_type and field.message_type.GetOptions().map_entry:
            getattr(message, field.name)[1] = 1
        elif field.message_type:
            getattr(message, field.name).SetInParent()
        elif field.is_repeated:
            getattr(message, field.name).append("x" if field.type == field.TYPE_STRING else 1)
        else:
            setattr(message, field.name, "x" if field.type == field.TYPE_STRING else 1)
        assert to_request(message) != to_request(pb.GenerationInput()), field.name


@pytest.mark.parametrize("character", ["x", "\n", "ü", "漢", "🐉"])
def test_a_long_message_fits_into_trailing_metadata(character: str):
    proto = status.to_proto(InvalidRequest(character * 5000, field="messages[3].content"))

    assert len(proto.message.encode()) <= 1024
    assert proto.message.endswith("…")
    percent_encoded = len(quote(proto.message))
    base64_encoded = -(-len(proto.SerializeToString()) // 3) * 4
    assert percent_encoded + base64_encoded < 7 * 1024


def test_many_faults_of_a_profile_are_told_in_full():
    faults = "\n".join(f"  - policy 'x{number}': there is no option 'y'" for number in range(20))
    assert status.to_proto(InvalidRequest(faults)).message == faults
