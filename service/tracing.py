"""Where a request's trace comes from, and who is told when it has ended. Knows no OpenTelemetry.

The caller's trace context is ambient: the edges, HTTP and gRPC, set it, and tasks that they start
inherit it, so that no request has to carry it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from cadenza.service.request_timer import Ended
from cadenza.wire.messages import Sampling

# W3C's names, of headers and of gRPC metadata alike
_NAMES = frozenset({"traceparent", "tracestate"})
_NOBODY: Mapping[str, str] = MappingProxyType({})
_MAX_CHARS = 1024  # of each; W3C asks for 512 at least

_caller: ContextVar[Mapping[str, str]] = ContextVar("caller", default=_NOBODY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A request that has been launched."""

    id: str
    operation: str  # "chat" or "text_completion"
    model: str
    sampling: Sampling
    caller: Mapping[str, str]  # its trace context, as sent


class Tracer(Protocol):
    """**Protocol:** is told of every request that was launched, once it has ended."""

    def end(self, subject: Subject, ended: Ended) -> None:
        """Called on the loop; must not block or raise."""

    def close(self) -> None:
        """Let what was told go out, for a bounded time. May block."""


def remember_caller(headers: Iterable[tuple[str, str]]) -> None:
    """Take the trace context of a call, for what this task and those that it starts submit."""
    _caller.set(
        {name: value for name, value in headers if name in _NAMES and len(value) <= _MAX_CHARS}
    )


def caller() -> Mapping[str, str]:
    """The trace context of the call that this task serves."""
    return _caller.get()
