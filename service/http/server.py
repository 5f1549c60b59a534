"""uvicorn inside our process: its loop, its signals and its shutdown are ours."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Generator, Sequence
from functools import partial
from typing import cast

import uvicorn
from starlette.types import ASGIApp

from cadenza.service.http.connection import ConnectionLimits
from cadenza.service.http.protocol import BoundedProtocol


class HttpServer:
    """Serves an application on sockets that are already bound, on the running loop."""

    def __init__(
        self,
        app: ASGIApp,
        sockets: Sequence[socket.socket],
        *,
        graceful_s: float = 5.0,
        limits: ConnectionLimits | None = None,
    ) -> None:
        """`graceful_s` bounds how long open responses may go on after `stop`."""
        limits = limits or ConnectionLimits()
        self._sockets = list(sockets)
        self._server = _Server(
            uvicorn.Config(
                app,
                http=cast(type[asyncio.Protocol], partial(BoundedProtocol, limits=limits)),
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=limits.idle_s,
                timeout_graceful_shutdown=max(1, round(graceful_s)),
            )
        )

    @property
    def num_connections(self) -> int:
        """Connections that hold a socket of ours, those about to close included."""
        return len(self._server.server_state.connections)

    async def serve(self) -> None:
        """Serve until `stop`; every connection has ended on return.

        Cancelling it ends all of them at once.
        """
        await self._server.serve(self._sockets)

    def stop(self) -> None:
        """Accept nothing more, let open responses end within the grace, then return from `serve`.

        A second call ends the grace.
        """
        self._server.force_exit = self._server.should_exit
        self._server.should_exit = True


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Leave signals alone: HTTP and gRPC stop together, on the caller's word."""
        yield
