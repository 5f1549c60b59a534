"""Events of one generation, numbered as they are told a stream that can be resumed."""

from __future__ import annotations

from cadenza.service.resumable_stream import ResumableStream
from cadenza.service.stream_log import Entry


class Telling:
    """Gathers encoded events with their places, until they are told together."""

    def __init__(self, num_choices: int, stream: ResumableStream) -> None:
        self._offsets = [0] * num_choices
        self._stream = stream
        self._entries: list[Entry] = []

    @property
    def number(self) -> int:
        """That of the next event."""
        return self._stream.log.num_told + len(self._entries) + 1

    @property
    def offsets(self) -> tuple[int, ...]:
        """Tokens of each choice that have come by the next event, or with it."""
        return tuple(self._offsets)

    def count(self, choice: int, num_tokens: int) -> None:
        """So many tokens of a choice come with the next event, or without one."""
        self._offsets[choice] += num_tokens

    def add(self, event: bytes) -> None:
        """The next event, which has `number` and `offsets` in it."""
        self._entries.append(Entry(event, self.offsets))

    def tell(self) -> None:
        """Tell the stream what was gathered, perhaps nothing, and how many tokens have come."""
        entries, self._entries = self._entries, []
        self._stream.tell(entries)
        self._stream.count(sum(self._offsets))
