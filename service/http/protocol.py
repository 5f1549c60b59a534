"""uvicorn's httptools protocol, with the bound on request heads that httptools lacks."""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 64 << 10


class BoundedProtocol(HttpToolsProtocol):
    """Refuses a request whose line and headers exceed MAX_HEAD_BYTES (and at most one read more).

    Without it the parser gathers a header for as long as the client sends one.
    """

    _head_bytes = 0  # received in a row without a head or a body becoming whole
    _in_head = True
    _moved_on = False

    def data_received(self, data: bytes) -> None:
        """Parse, then count what an unfinished head took."""
        self._moved_on = False
        super().data_received(data)
        if self._moved_on or not self._in_head:
            self._head_bytes = 0
            return
        self._head_bytes += len(data)
        if self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("The request's headers are too large.")

    def on_headers_complete(self) -> None:
        """A head is whole: what follows is its body."""
        self._in_head, self._moved_on = False, True
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """A request is whole: what follows is the next one's head."""
        self._in_head, self._moved_on = True, True
        super().on_message_complete()
