"""What a response may ask of the connection that carries it, and how long a client may take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, cast

from starlette.types import Scope


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """Bounds on connections. Beyond the times a connection is aborted, unless said otherwise."""

    head_s: float = 30.0  # for a request's line and headers, once a client has begun or connected
    body_s: float = 60.0  # for a request's body; beyond it the answer is 408
    send_s: float = 60.0  # for taking 64 KiB of an answer, or the rest of it after the last write
    idle_s: int = 30  # between an answer and the next request; closed, not aborted
    max_connections: int = 4096  # beyond it a connection gets a 503 and is closed


class Connection(Protocol):
    """**Protocol:** one client's connection, as `scope["state"]["connection"]`."""

    limits: ConnectionLimits

    @property
    def is_lost(self) -> bool:
        """Whether the client has gone."""
        ...

    @property
    def write_waits(self) -> bool:
        """Whether a write would wait for the client."""
        ...

    def takes_more(self) -> bool:
        """Whether more of the answer under way can be written without waiting for the client."""
        ...

    def write_more(self, data: bytes) -> None:
        """Write a part of the answer under way, past ASGI. For small ones, where `takes_more`."""

    def watch_flow(self, callback: Callable[[bool], None] | None) -> None:
        """Call back with True when the client ceases to take what is written, and False when it
        takes it again; at once if it has ceased. None: call back no more.
        """

    def watch_loss(self, callback: Callable[[], None]) -> None:
        """Call back once, when the connection is lost. Meanwhile it is read, and a body dropped."""

    def unwatch_loss(self, callback: Callable[[], None]) -> None:
        """Call back no more."""

    def abort(self) -> None:
        """Drop the connection with whatever has not been sent. Idempotent."""

    def abort_later(self) -> None:
        """Do so after `send_s`, unless it has closed by then. For an answer that ends early."""


def connection_of(scope: Scope) -> Connection:
    """The connection of a request that `HttpServer` serves."""
    return cast(Connection, scope["state"]["connection"])
