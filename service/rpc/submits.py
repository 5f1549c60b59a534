"""What a Session's client asks for when it begins a request."""

from __future__ import annotations

import time
from dataclasses import replace

from cadenza.service.errors import InvalidRequest
from cadenza.service.request import GenerationRequest
from cadenza.service.rpc.codec import to_request
from cadenza.v1 import generation_pb2 as pb


def to_submitted(submit: pb.Submit | pb.Append) -> GenerationRequest:
    """What a client wants generated. Raises InvalidRequest where this cannot even be read."""
    return replace(
        to_request(submit.input),
        deadline_s=to_deadline_s(submit),
        credit=submit.credit if submit.HasField("credit") else None,
    )


def to_deadline_s(action: pb.Submit | pb.Append | pb.SetDeadline) -> float | None:
    """On the monotonic clock; None where no timeout is set. Raises InvalidRequest if negative."""
    if not action.HasField("timeout"):
        return None
    timeout_s = action.timeout.seconds + action.timeout.nanos * 1e-9
    if timeout_s < 0:
        raise InvalidRequest(f"timeout is {timeout_s:g} s; it must not be negative", "timeout")
    return time.monotonic() + timeout_s
