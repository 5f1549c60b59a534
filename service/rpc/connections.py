"""What the gRPC server grants each connection: sizes, streams, pings, and how long it lasts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cadenza.service.rpc import channelz

MAX_MESSAGE_BYTES = 4 * 1024 * 1024  # as much as the body of an HTTP request
# Calls at once; a client's further ones wait for these. Each may have an outbox full, so that a
# connection takes 128 MiB at most.
MAX_STREAMS = 256
# A client that answers no pings is gone after at most the sum, whether it has calls or not.
PING_EVERY_MS = 5_000
PING_ANSWERED_MS = 4_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionAge:
    """How old a connection gets. By default it lasts as long as its client wants."""

    max_s: float | None = None  # then no further calls; 10% more or less, by chance
    grace_s: float = 600.0  # what calls that still run have from then on


ANY_AGE = ConnectionAge()


def server_options(age: ConnectionAge) -> Sequence[tuple[str, Any]]:
    """What gRPC's core is told."""
    options: list[tuple[str, Any]] = [
        channelz.OPTION,
        # By default two servers may share a port, and clients meet either.
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        # Responses are smaller; clients accept 4 MiB unless told otherwise.
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_concurrent_streams", MAX_STREAMS),
        ("grpc.keepalive_time_ms", PING_EVERY_MS),
        ("grpc.keepalive_timeout_ms", PING_ANSWERED_MS),
        # The keepalive's own timeout is not what ends a connection: this is, a minute by default.
        ("grpc.http2.ping_timeout_ms", PING_ANSWERED_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        # While no data goes out, which is when pings are needed; 2 by default, then one a minute.
        ("grpc.http2.max_pings_without_data", 0),
        # Clients may ping as they like, and are never cut off for it.
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        ("grpc.http2.max_ping_strikes", 0),
    ]
    if age.max_s is not None:
        options.append(("grpc.max_connection_age_ms", _ms(age.max_s)))
        options.append(("grpc.max_connection_age_grace_ms", _ms(age.grace_s)))
    return options


def _ms(seconds: float) -> int:
    """Of so long a time that gRPC's core counts it as none, the longest."""
    return min(max(1, round(seconds * 1000)), 2**31 - 1)
