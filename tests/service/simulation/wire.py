"""The connection between front and engine: bytes that take their time, and come in pieces."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from cadenza.wire.codec import FrameReader, encode
from cadenza.wire.messages import ToEngine, ToFront

from .loop import SeededLoop

_LONG_S = 0.3


class Wire(asyncio.WriteTransport):
    """Both ends of a socketpair; to the front it is the socket and its transport.

    What was sent arrives in order, unless an end is gone before.
    """

    def __init__(
        self,
        loop: SeededLoop,
        on_message: Callable[[ToEngine], None],
        on_closed: Callable[[], None],
    ) -> None:
        """`on_message` and `on_closed` are the engine's."""
        super().__init__()
        self._loop = loop
        self._on_message = on_message
        self._on_closed = on_closed
        self._reader: FrameReader[ToEngine] = FrameReader(ToEngine)
        self._protocol: Any = None
        self._to_engine: list[bytes] = []
        self._to_front = bytearray()
        self._engine_is_gone = self._front_is_gone = False

    # the engine's end

    def send(self, message: ToFront) -> None:
        self._to_front += encode(message)
        self._loop.call_later(self._delay_s(), self._tell_front)

    def engine_gone(self, *, unsent: float = 0.0) -> None:
        """Its end closes; of the bytes on their way this share had not left it."""
        self._engine_is_gone = True
        del self._to_front[len(self._to_front) - int(unsent * len(self._to_front)) :]
        self._loop.call_later(self._delay_s(), self._tell_front)

    def _tell_front(self) -> None:
        if self._front_is_gone or self._protocol is None:
            return
        if self._to_front:
            size = len(self._to_front)
            if self._loop.chance.random() < 0.2:
                size = self._loop.chance.randint(1, size)
            data = bytes(self._to_front[:size])
            del self._to_front[:size]
            self._protocol.data_received(data)
            if self._to_front or self._engine_is_gone:
                self._loop.call_later(self._delay_s(), self._tell_front)
        elif self._engine_is_gone:
            self._lose()

    # the front's end

    def attach(self, protocol: Any) -> Wire:
        self._protocol = protocol
        self._loop.call_later(self._delay_s(), self._tell_front)
        return self

    def setblocking(self, flag: bool) -> None:
        pass

    def write(self, data: bytes) -> None:  # type: ignore[override]
        self._to_engine.append(data)
        self._loop.call_later(self._delay_s(), self._tell_engine)

    def close(self) -> None:
        """The engine gets what was written, and then learns that there is no more."""
        self._lose()
        self._loop.call_later(_LONG_S, self._close_engine)

    def abort(self) -> None:
        self._to_engine.clear()
        self.close()

    def _lose(self) -> None:
        if not self._front_is_gone:
            self._front_is_gone = True
            self._loop.call_soon(self._protocol.connection_lost, None)

    def _tell_engine(self) -> None:
        if self._to_engine and not self._engine_is_gone:
            for message in self._reader.feed(self._to_engine.pop(0)):
                self._on_message(message)

    def _close_engine(self) -> None:
        if not self._engine_is_gone:
            self._on_closed()

    def _delay_s(self) -> float:
        dice = self._loop.chance.random()
        return _LONG_S * dice if dice > 0.97 else 0.002 * dice
