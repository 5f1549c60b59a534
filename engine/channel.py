"""The engine's end of the socketpair: framed, never blocking while there is work."""

from __future__ import annotations

import select
import socket

from cadenza.wire.codec import FrameReader, encode
from cadenza.wire.messages import ToEngine, ToFront

_READ_BYTES = 1 << 20


class ChannelClosed(Exception):
    """The front process is gone."""


class Channel:
    """Sends and receives whole messages over a connected stream socket.

    What the socket does not take at once waits in a buffer; `backlog` is its size, and the loop
    must not plan further steps while it is over its bound.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._reader: FrameReader[ToEngine] = FrameReader(ToEngine)
        self._unsent = bytearray()

    @property
    def backlog(self) -> int:
        """Bytes accepted by `send` that the socket has not taken yet."""
        return len(self._unsent)

    def send(self, message: ToFront) -> None:
        """Queue a message and send what the socket takes now.

        Raises:
            ChannelClosed: the front process is gone.
        """
        self._unsent += encode(message)
        self._flush()

    def receive(self, timeout_s: float | None) -> list[ToEngine]:
        """Messages that arrived; waits up to `timeout_s` (None: for ever) for the first.

        Goes on sending the backlog meanwhile, and returns early when it is gone.

        Raises:
            ChannelClosed: the front process is gone.
            FrameError: it sent something that is no message.
        """
        ready = self._wait(select.POLLIN | (select.POLLOUT if self._unsent else 0), timeout_s)
        if ready & select.POLLOUT:
            self._flush()
        return self._read() if ready & ~select.POLLOUT else []

    def close(self) -> None:
        """Close the socket; the front process is told by that. Unsent bytes are lost."""
        self._socket.close()

    def drain(self, timeout_s: float = 5.0) -> None:
        """Wait until the backlog is sent, for `timeout_s` at most; for the last words of a process.

        Raises:
            ChannelClosed: the front process is gone.
        """
        while self._unsent and self._wait(select.POLLOUT, timeout_s):
            self._flush()

    def _wait(self, events: int, timeout_s: float | None) -> int:
        """The events that are there, a closed connection among them; 0: none came in time."""
        poll = select.poll()  # the front's number for the socket may be too large for `select`
        poll.register(self._socket, events)
        ready = poll.poll(None if timeout_s is None else 1000 * timeout_s)
        return ready[0][1] if ready else 0

    def _read(self) -> list[ToEngine]:
        """What has arrived. Last words count: the end of the stream is told by the next call."""
        messages: list[ToEngine] = []
        while True:
            try:
                data = self._socket.recv(_READ_BYTES)
            except BlockingIOError:
                return messages
            except OSError as error:
                raise ChannelClosed from error
            if not data and messages:
                return messages
            if not data:
                raise ChannelClosed
            messages.extend(self._reader.feed(data))

    def _flush(self) -> None:
        try:
            while self._unsent:
                sent = self._socket.send(self._unsent)
                del self._unsent[:sent]
        except BlockingIOError:
            return
        except OSError as error:
            raise ChannelClosed from error
