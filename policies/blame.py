"""Who is being asked what, in memory that another process can read when this one hangs or is dead.

The memory holds the number of the hook call under way (0: none), when it began, and a table of
names, written once each. So a call costs two stores. A name keeps its number for good, however
often its policy leaves and comes back. Only a process that has called a thousand differently named
hooks and policies runs out of numbers; it cannot say then which of the later ones hangs, and that
is all.
"""

from __future__ import annotations

import mmap
from typing import NamedTuple, TypeAlias

Buffer: TypeAlias = bytearray | memoryview | mmap.mmap

_HEAD_BYTES = 16  # the number, as uint64, and the time, as float64
_NAME_BYTES = 128
_NUM_NAMES = 1023  # pages that nothing was written to take no memory
_SEPARATOR = "\n"

SIZE = _HEAD_BYTES + _NUM_NAMES * _NAME_BYTES  # bytes


class Culprit(NamedTuple):
    """A hook call that had not returned."""

    policy: str
    hook: str
    since_s: float  # on the clock of whoever called it


class Blame:
    """The writer's end, over SIZE bytes of zeros."""

    def __init__(self, buffer: Buffer) -> None:
        memory = memoryview(buffer)
        self._number = memory[:8].cast("Q")
        self._since_s = memory[8:_HEAD_BYTES].cast("d")
        self._names = memory[_HEAD_BYTES:SIZE]
        self._numbers: dict[tuple[str, str], int] = {}

    def number_of(self, policy: str, hook: str) -> int:
        """Its number for `enter`; 0, which blames nobody, when the table is full."""
        known = self._numbers.get((policy, hook))
        if known is not None:
            return known
        used = len(self._numbers)
        if used == _NUM_NAMES:
            return 0
        name = f"{hook}{_SEPARATOR}{policy}".encode()[:_NAME_BYTES]
        start = used * _NAME_BYTES
        self._names[start : start + len(name)] = name
        self._numbers[policy, hook] = used + 1
        return used + 1

    def enter(self, number: int, now_s: float) -> None:
        """A call begins."""
        self._since_s[0] = now_s
        self._number[0] = number

    def leave(self) -> None:
        """It has returned."""
        self._number[0] = 0


def read_blame(buffer: Buffer) -> Culprit | None:
    """The call under way, from the other end; None between calls."""
    memory = memoryview(buffer)
    number = memory[:8].cast("Q")[0]
    if not 0 < number <= _NUM_NAMES:
        return None
    start = _HEAD_BYTES + (number - 1) * _NAME_BYTES
    name = bytes(memory[start : start + _NAME_BYTES]).rstrip(b"\0").decode(errors="replace")
    hook, _, policy = name.partition(_SEPARATOR)
    return Culprit(policy, hook, memory[8:_HEAD_BYTES].cast("d")[0])
