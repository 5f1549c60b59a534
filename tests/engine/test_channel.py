"""The engine's end of the socketpair, by itself; what goes over it is tested with the loop."""

from __future__ import annotations

import fcntl
import resource
import socket
from collections.abc import Iterator

import pytest

from cadenza.engine.channel import Channel, ChannelClosed
from cadenza.wire.codec import encode
from cadenza.wire.messages import Cancel, Failed

NUMBER = 1500  # of a descriptor; `select` takes none over 1023


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard <= NUMBER:
        pytest.skip(f"no more than {hard} descriptors may be open here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * NUMBER), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_descriptors")
def test_a_front_with_a_thousand_connections_may_start_an_engine():
    """The engine's descriptor has the number that was free in the front."""
    ours, theirs = socket.socketpair()
    with theirs:
        channel = Channel(socket.socket(fileno=fcntl.fcntl(theirs, fcntl.F_DUPFD, NUMBER)))
    assert channel.receive(0) == []
    ours.sendall(encode(Cancel(7)))
    assert channel.receive(None) == [Cancel(7)]
    channel.send(Failed("x" * (4 << 20)))
    assert channel.backlog
    ours.setblocking(False)
    while channel.backlog:
        ours.recv(1 << 20)
        channel.receive(0)
    channel.drain()
    ours.close()
    with pytest.raises(ChannelClosed):
        channel.receive(None)
    channel.close()
