"""Framing: a message is four bytes of length (little-endian) and that many of MessagePack.

Sans-I/O, so that the front's event loop and the engine's synchronous loop share it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import msgspec

from cadenza.wire.messages import ToEngine, ToFront

Message = TypeVar("Message")

MAX_FRAME_BYTES = 256 << 20
_LENGTH_BYTES = 4

_encoder = msgspec.msgpack.Encoder()


class FrameError(Exception):
    """The peer sent bytes that are no frame of ours; the connection cannot go on."""


def encode(message: ToEngine | ToFront) -> bytes:
    """One message as a frame.

    Raises:
        FrameError: the message is larger than MAX_FRAME_BYTES.
    """
    body = _encoder.encode(message)
    if len(body) > MAX_FRAME_BYTES:
        raise FrameError(f"a message of {len(body)} bytes is over {MAX_FRAME_BYTES}")
    return len(body).to_bytes(_LENGTH_BYTES, "little") + body


class FrameReader(Generic[Message]):
    """Cuts a stream of bytes, however it was split, into messages of one direction.

    `messages` is `ToFront` or `ToEngine`: a union, for which there is no type to annotate.
    """

    def __init__(self, messages: Any) -> None:
        self._decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(messages)
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Message]:
        """Every message that `data` completes, in order.

        Raises:
            FrameError: a length or a body that cannot be ours.
        """
        self._buffer += data
        start = 0
        try:
            while len(self._buffer) - start >= _LENGTH_BYTES:
                body = start + _LENGTH_BYTES
                size = int.from_bytes(self._buffer[start:body], "little")
                if size > MAX_FRAME_BYTES:
                    raise FrameError(f"a frame announces {size} bytes, over {MAX_FRAME_BYTES}")
                if len(self._buffer) < body + size:
                    break
                frame = bytes(self._buffer[body : body + size])
                start = body + size
                yield self._decode(frame)
        finally:
            del self._buffer[:start]

    def _decode(self, frame: bytes) -> Message:
        try:
            return self._decoder.decode(frame)
        except msgspec.DecodeError as error:
            raise FrameError(f"a frame is no message of ours: {error}") from error
