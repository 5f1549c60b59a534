"""The front's end of the socketpair to one engine process."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import cast

from cadenza.wire.codec import FrameError, FrameReader, encode
from cadenza.wire.messages import ToEngine, ToFront


class EngineConnection(asyncio.Protocol):
    """Passes whole messages to `on_message`, and tells once, by `on_lost`, that there are no more.

    `on_lost` gets what was wrong with the bytes that came; None: the connection was closed.
    """

    def __init__(
        self, on_message: Callable[[ToFront], None], on_lost: Callable[[str | None], None]
    ) -> None:
        self._on_message = on_message
        self._on_lost = on_lost
        self._reader: FrameReader[ToFront] = FrameReader(ToFront)
        self._transport: asyncio.WriteTransport | None = None
        self._is_lost = False
        self.num_reads = 0  # how often something came

    @classmethod
    async def open(
        cls,
        end: socket.socket,
        on_message: Callable[[ToFront], None],
        on_lost: Callable[[str | None], None],
    ) -> EngineConnection:
        """Take over one end of a socketpair, which now belongs to the connection."""
        end.setblocking(False)
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_unix_connection(
            lambda: cls(on_message, on_lost), sock=end
        )
        return connection

    def write(self, message: ToEngine) -> None:
        """Send without waiting. What a connection that is lost is given is lost, too."""
        if self._transport is not None and not self._is_lost:
            self._transport.write(encode(message))

    def close(self) -> None:
        """Close once everything is sent."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once, and tell nobody anything more."""
        self._is_lost = True
        if self._transport is not None:
            self._transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not derive from asyncio's
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        self.num_reads += 1
        try:
            for message in self._reader.feed(data):
                if self._is_lost:  # by the message before
                    return
                self._on_message(message)
        except FrameError as error:
            self._lose(str(error))

    def eof_received(self) -> bool:
        return False  # close our half too

    def connection_lost(self, error: Exception | None) -> None:
        self._lose(None)

    def _lose(self, wrong: str | None) -> None:
        if not self._is_lost:
            self._is_lost = True
            self._on_lost(wrong)
            self.close()
