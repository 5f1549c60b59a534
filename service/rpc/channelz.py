"""How many connections gRPC's core has open, which `grpc.aio` does not tell.

The core counts them for its channelz service. The functions that are asked here are private, but
`grpcio-channelz` asks them as well, and works with every grpcio that is later than itself. Should
they be gone one day, connections are not counted, and nothing else is lost.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import structlog

OPTION = ("grpc.enable_channelz", 1)
_PAGE = 500  # told at once

T = TypeVar("T")

_log = structlog.get_logger(__name__)


class ConnectionCounter:
    """Counts the connections of one server, until the core fails to tell them, which is logged."""

    def __init__(self) -> None:
        """Just before the server is made."""
        self._others = _answer(_servers)
        self._server: int | None = None  # its number, among all that the core has had

    def server_made(self) -> None:
        """It is the one that was not there before."""
        others = self._others
        if others is not None:
            self._server = _answer(lambda: _only(_servers() - others))

    def count(self) -> int | None:
        """Connections that clients have, with calls or without; None: nobody knows.

        Some milliseconds for some hundreds. From any thread, but one at a time.
        """
        server = self._server
        if server is None:
            return None
        told = _answer(lambda: _num_connections(server))
        if told is None:
            self._server = None
        return told


def _answer(ask: Callable[[], T]) -> T | None:
    try:
        return ask()
    except Exception as error:  # of another version's core, anything
        _log.warning("grpc connections are not counted", reason=repr(error))
        return None


def _only(numbers: set[int]) -> int:
    [number] = numbers
    return number


def _servers() -> set[int]:
    """Numbers of all servers of this process."""
    pages = _core().channelz_get_servers
    return set(_all(pages, "server", lambda server: server["ref"]["serverId"]))


def _num_connections(server: int) -> int:
    sockets = _core().channelz_get_server_sockets
    return len(
        _all(
            lambda start: sockets(server, start, _PAGE),
            "socketRef",
            lambda socket: socket["socketId"],
        )
    )


def _core() -> Any:
    from grpc._cython import cygrpc  # type: ignore[attr-defined]

    return cygrpc


def _all(page: Callable[[int], bytes], kind: str, number: Callable[[Any], str]) -> list[int]:
    """The numbers of what is told a page at a time, in their order."""
    numbers: list[int] = []
    while True:
        start = numbers[-1] + 1 if numbers else 0
        told = json.loads(page(start))
        numbers += [int(number(each)) for each in told.get(kind, ())]
        if told.get("end"):
            return numbers
        if not numbers or numbers[-1] < start:
            raise ValueError("the core tells the same page for ever")
