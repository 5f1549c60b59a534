"""Just enough of HTTP/2 to see what a server says to one connection."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS, PING, GOAWAY = 4, 6, 7
ACK = 1
MAX_CONCURRENT_STREAMS = 3  # a setting's name


@dataclass(frozen=True)
class Frame:
    kind: int
    flags: int
    payload: bytes

    @property
    def settings(self) -> dict[int, int]:
        return dict(struct.iter_unpack(">HI", self.payload))

    @property
    def goaway_code(self) -> int:
        return int.from_bytes(self.payload[4:8], "big")


class Connection:
    """A client's end, after the preface and its settings."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        writer.write(PREFACE)
        self.send(SETTINGS)

    def send(self, kind: int, payload: bytes = b"", flags: int = 0) -> None:
        header = len(payload).to_bytes(3, "big") + bytes([kind, flags]) + bytes(4)
        self._writer.write(header + payload)

    async def frames(self) -> AsyncIterator[Frame]:
        """What the server sends, until it closes. Its pings are answered."""
        while header := await self._header():
            frame = Frame(
                header[3], header[4], await self._reader.readexactly(int.from_bytes(header[:3]))
            )
            if frame.kind == PING and not frame.flags & ACK:
                self.send(PING, frame.payload, ACK)
            yield frame

    async def _header(self) -> bytes:
        try:
            return await self._reader.readexactly(9)
        except (asyncio.IncompleteReadError, ConnectionError):
            return b""


@asynccontextmanager
async def connect(port: int) -> AsyncIterator[Connection]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield Connection(reader, writer)
    finally:
        writer.close()
