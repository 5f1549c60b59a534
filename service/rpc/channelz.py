"""How many connections gRPC's core has open, which `grpc.aio` does not tell.

The core counts them for its channelz service. The functions that are asked here are private, but
`grpcio-channelz` asks them as well, and works with every grpcio that is later than itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from grpc._cython import cygrpc  # type: ignore[attr-defined]

OPTION = ("grpc.enable_channelz", 1)
_PAGE = 500  # told at once


def servers() -> set[int]:
    """Numbers of all servers of this process."""
    return set(
        _all(cygrpc.channelz_get_servers, "server", lambda server: server["ref"]["serverId"])
    )


def num_connections(server: int) -> int:
    """Connections that clients have to a server of this number, with calls or without."""

    def page(start: int) -> bytes:
        found: bytes = cygrpc.channelz_get_server_sockets(server, start, _PAGE)
        return found

    return len(_all(page, "socketRef", lambda socket: socket["socketId"]))


def _all(page: Callable[[int], bytes], kind: str, number: Callable[[Any], str]) -> list[int]:
    """The numbers of what is told a page at a time, in their order."""
    numbers: list[int] = []
    while True:
        told = json.loads(page(numbers[-1] + 1 if numbers else 0))
        numbers += [int(number(each)) for each in told.get(kind, ())]
        if told.get("end"):
            return numbers
