"""What a stream that can be resumed has told, and how much of it is kept."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from cadenza.service.errors import InvalidRequest, OffsetGone, RequestError

_ENTRY_BYTES = 160  # of an entry and its parts, besides what they hold
_OFFSET_BYTES = 40


class Entry(NamedTuple):
    """One event as it goes to a client."""

    data: bytes
    offsets: tuple[int, ...]  # tokens of each choice that have been told with it


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a client goes on: behind an event, or behind the tokens of each choice that it has.

    Where both are given they must agree; where neither is, all is told from the beginning.
    """

    field: str  # what clients call it
    number: int | None = None  # of the last event that the client has; the first is 1
    offsets: tuple[int, ...] | None = None


class StreamLog:
    """The events of one stream, numbered from 1: those still to be read, and some that have been.

    Of events that have been read the oldest are forgotten once all together take more than
    `max_bytes`. Those that nobody has read yet are never forgotten: whoever writes has to stop in
    time, which `StreamFlow` sees to.
    """

    def __init__(self, max_bytes: int) -> None:
        self.num_read = 0  # number of the last event that its reader has taken
        self.is_ended = False  # nothing more comes
        self.failure: RequestError | None = None  # which is raised where the events end
        self.num_bytes = 0  # that the kept events take, roughly
        self._max_bytes = max_bytes
        self._entries: deque[Entry] = deque()
        self._first = 0  # number of the event before the oldest that is kept
        self._first_offsets: tuple[int, ...] = ()

    @property
    def num_told(self) -> int:
        """Number of the last event."""
        return self._first + len(self._entries)

    @property
    def offsets(self) -> tuple[int, ...]:
        """Tokens of each choice that have been told; empty before the first event."""
        return self._offsets_at(self.num_told)

    @property
    def num_unread_tokens(self) -> int:
        """Tokens of all choices that its reader has not taken."""
        return sum(self.offsets) - sum(self._offsets_at(self.num_read))

    def append(self, data: bytes, offsets: tuple[int, ...]) -> None:
        """Tell one event more. Offsets never go back."""
        assert not self.is_ended
        entry = Entry(data, offsets)
        self._entries.append(entry)
        self.num_bytes += _size(entry)
        self._forget()

    def end(self, failure: RequestError | None = None) -> None:
        """Nothing more is told, but perhaps that it failed. The first end counts."""
        if not self.is_ended:
            self.is_ended, self.failure = True, failure

    def after(self, number: int) -> Sequence[Entry]:
        """All events behind that of this number, which `find` has given or which was read since."""
        newest = islice(reversed(self._entries), self.num_told - number)
        return [*newest][::-1]

    def read(self, number: int) -> None:
        """The reader has taken all events up to this number, or has gone back to it."""
        self.num_read = number
        self._forget()

    def find(self, place: Place) -> int:
        """The number of the event behind which a client goes on.

        Raises:
            InvalidRequest: nothing was told up to there, or no event ends there.
            OffsetGone: what follows has been forgotten.
        """
        if place.number is None and place.offsets is None:
            self._check_kept(0, place)
            return 0
        number = self._number_at(place) if place.number is None else place.number
        if number > self.num_told:
            raise InvalidRequest(
                f"{place.field} is beyond event {self.num_told}, the last of this stream so far.",
                place.field,
            )
        self._check_kept(number, place)
        told = self._offsets_at(number)
        if number and place.offsets is not None and place.offsets != told:
            raise InvalidRequest(
                f"{place.field} is none of this stream's: {_written(told)} tokens of its choices "
                f"had been told with event {number}, not {_written(place.offsets)}.",
                place.field,
            )
        return number

    def _number_at(self, place: Place) -> int:
        """The first event with which just these tokens had been told."""
        offsets = place.offsets or ()
        if not any(offsets):
            return 0
        told = self.offsets
        if told and len(offsets) != len(told):
            raise InvalidRequest(
                f"{place.field} must have one number for each of {len(told)} choices.", place.field
            )
        if not told or any(asked > had for asked, had in zip(offsets, told, strict=True)):
            raise InvalidRequest(
                f"{place.field} is beyond {_written(told)}, the tokens told so far.", place.field
            )
        wanted = sum(offsets)
        if wanted < sum(self._first_offsets):
            raise self._gone(place)
        index = bisect_left(self._entries, wanted, key=lambda entry: sum(entry.offsets))
        number = self._first + (index + 1 if wanted > sum(self._first_offsets) else 0)
        if self._offsets_at(number) != offsets:
            raise InvalidRequest(
                f"{place.field} is {_written(offsets)}, where no event of this stream ends; the "
                f"nearest are {_written(self._offsets_at(number - 1))} and "
                f"{_written(self._offsets_at(number))}.",
                place.field,
            )
        return number

    def _check_kept(self, number: int, place: Place) -> None:
        if number < self._first:
            raise self._gone(place)

    def _gone(self, place: Place) -> OffsetGone:
        return OffsetGone(
            f"What follows {place.field} is no longer kept; the oldest place to go on from is "
            f"behind event {self._first}, at {_written(self._first_offsets)} tokens."
        )

    def _offsets_at(self, number: int) -> tuple[int, ...]:
        if number <= self._first:
            return self._first_offsets
        return self._entries[number - self._first - 1].offsets

    def _forget(self) -> None:
        while self.num_bytes > self._max_bytes and self._first < self.num_read:
            entry = self._entries.popleft()
            self._first += 1
            self._first_offsets = entry.offsets
            self.num_bytes -= _size(entry)


def _size(entry: Entry) -> int:
    return len(entry.data) + _OFFSET_BYTES * len(entry.offsets) + _ENTRY_BYTES


def _written(offsets: Sequence[int]) -> str:
    return ".".join(map(str, offsets)) or "0"
