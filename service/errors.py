"""What can go wrong with a request, once for HTTP and gRPC.

    RequestError                    broad: catch this at the edge
    ├── InvalidRequest              the client must change the request (names the field)
    ├── UnknownModel                no such model here
    ├── UnknownPolicy               no such policy is in use
    ├── UnknownRequest              no such request is known, or not to this client
    ├── UnknownStream               no such stream can be resumed, or not by this client
    ├── StreamConflict              the stream of this id is another request's
    ├── StreamTakenOver             another connection goes on reading the stream
    ├── StreamCancelled             its client has given the stream up
    ├── OffsetGone                  what the stream told there is no longer kept
    ├── Unauthenticated             the key of an administrator is missing or wrong
    ├── Forbidden                   nobody may do this here, or from there
    ├── ChangeUnderWay              another change has to end first; retry after a while
    ├── Overloaded                  the queue is full; retry after a while
    ├── QuotaExceeded               the tenant has had its share for now; retry after a while
    ├── DeadlineExceeded            its time was up before it was whole; the same would happen again
    └── EngineUnavailable           the engine is stopping or dead; retry elsewhere or later
        └── GenerationFailed        this generation failed after it had begun

`status_of` maps each to an HTTP status, an OpenAI error type and a gRPC code name.
"""

from __future__ import annotations

from dataclasses import dataclass

UNEXPECTED = "Something went wrong in the server."  # all that a client is told of a mistake of ours


class RequestError(Exception):
    """A failure whose message may be shown to the client. Subclasses say whose fault it is."""

    field: str | None = None
    retry_after_s: float | None = None

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class InvalidRequest(RequestError):
    """The request cannot be served as it is. `field` names the part to change."""

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class UnknownModel(RequestError):
    """The request names a model that is not served here."""

    field = "model"


class UnknownPolicy(RequestError):
    """The request names a policy that is not in use."""


class UnknownRequest(RequestError):
    """The request asks about another one that is not known, or is not the client's to see."""


class UnknownStream(RequestError):
    """The request goes on with a stream that is not known, or is not the client's to read."""


class StreamConflict(RequestError):
    """The request's stream id is that of another request."""

    field = "stream_id"


class StreamTakenOver(RequestError):
    """Another connection reads the stream now."""

    def __init__(self) -> None:
        super().__init__("Another connection has taken this stream over.")


class StreamCancelled(RequestError):
    """The stream was given up by its client."""

    def __init__(self) -> None:
        super().__init__("This stream has been cancelled.")


class OffsetGone(RequestError):
    """What the stream told at this place has been forgotten."""


class Unauthenticated(RequestError):
    """The request lacks the key that it needs, or has another."""


class Forbidden(RequestError):
    """No key would help: the message says what would."""


class ChangeUnderWay(RequestError):
    """What the request wants to change is being changed by another."""

    retry_after_s = 1.0


class Overloaded(RequestError):
    """Refused for load, before anything was computed."""

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class QuotaExceeded(RequestError):
    """Refused for what its tenant has asked for already, before anything was computed."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class DeadlineExceeded(RequestError):
    """The request's deadline passed before its last choice had ended."""

    def __init__(self) -> None:
        super().__init__("The request's deadline passed before it was complete.")


class EngineUnavailable(RequestError):
    """Nothing is wrong with the request; the engine cannot take it now."""

    retry_after_s = 1.0


class GenerationFailed(EngineUnavailable):
    """A generation that had begun cannot go on. `retryable`: the same request may succeed."""

    def __init__(self, message: str, *, retryable: bool) -> None:
        super().__init__(message)
        self.retryable = retryable


@dataclass(frozen=True, slots=True)
class Status:
    """How one kind of error is told to a client."""

    http: int
    type: str  # OpenAI's error.type
    code: str | None  # OpenAI's error.code
    grpc: str  # name of a grpc.StatusCode


STATUSES: dict[type[RequestError], Status] = {
    InvalidRequest: Status(400, "invalid_request_error", "invalid_value", "INVALID_ARGUMENT"),
    UnknownModel: Status(404, "invalid_request_error", "model_not_found", "NOT_FOUND"),
    UnknownPolicy: Status(404, "invalid_request_error", "policy_not_found", "NOT_FOUND"),
    UnknownRequest: Status(404, "invalid_request_error", "request_not_found", "NOT_FOUND"),
    UnknownStream: Status(404, "invalid_request_error", "stream_not_found", "NOT_FOUND"),
    StreamConflict: Status(409, "conflict_error", "stream_id_in_use", "ALREADY_EXISTS"),
    StreamTakenOver: Status(409, "conflict_error", "stream_taken_over", "ABORTED"),
    StreamCancelled: Status(410, "invalid_request_error", "stream_cancelled", "CANCELLED"),
    OffsetGone: Status(410, "invalid_request_error", "offset_gone", "OUT_OF_RANGE"),
    Unauthenticated: Status(401, "authentication_error", "invalid_api_key", "UNAUTHENTICATED"),
    Forbidden: Status(403, "permission_error", "forbidden", "PERMISSION_DENIED"),
    ChangeUnderWay: Status(409, "conflict_error", "change_under_way", "ABORTED"),
    Overloaded: Status(503, "overloaded_error", "queue_full", "RESOURCE_EXHAUSTED"),
    QuotaExceeded: Status(429, "rate_limit_error", "rate_limit_exceeded", "RESOURCE_EXHAUSTED"),
    DeadlineExceeded: Status(504, "timeout_error", "deadline_exceeded", "DEADLINE_EXCEEDED"),
    GenerationFailed: Status(500, "server_error", "generation_failed", "INTERNAL"),
    EngineUnavailable: Status(503, "server_error", "engine_unavailable", "UNAVAILABLE"),
}


def status_of(error: RequestError) -> Status:
    """The status of an error's nearest listed class.

    A generation that may be tried again is told as what has failed under it: by the status alone
    clients decide, and an event of a stream has no header that says so.
    """
    if isinstance(error, GenerationFailed) and error.retryable:
        return STATUSES[EngineUnavailable]
    return status_of_kind(type(error))


def status_of_kind(kind: type[RequestError]) -> Status:
    """As `status_of`, for any error of a class."""
    return next(STATUSES[each] for each in kind.__mro__ if each in STATUSES)
