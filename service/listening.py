"""Listening sockets, and a person's words for why there are none."""

from __future__ import annotations

import errno
import ipaddress
import socket

SEND_BUFFER_BYTES = 16 << 10  # of each connection, which Linux doubles for its own needs


def listen(protocol: str, host: str, port: int) -> list[socket.socket]:
    """Listening sockets on every address of `host`, all on one port; 0 takes any free one.

    Connections take over a small send buffer: what is in there nobody can hold back any more.

    Raises:
        OSError: the sentence says where `protocol` cannot listen, and why.
    """
    sockets: list[socket.socket] = []
    try:
        for family, _, _, _, address in socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            where = (address[0], sockets[0].getsockname()[1] if sockets else port)
            sockets.append(socket.create_server(where, family=family, backlog=2048))
            sockets[-1].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
    except OSError as error:
        for sock in sockets:
            sock.close()
        raise OSError(f"{protocol} cannot listen on {host}:{port}: {why(error)}") from error
    return sockets


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach what listens on `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def why(error: OSError) -> str:
    """The reason without Python's additions to it."""
    if error.errno == errno.EADDRINUSE:
        return "the port is in use"
    return error.strerror or str(error)
