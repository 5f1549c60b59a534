"""Lines of JSON that a process appends to a file, each of them whole, whatever fails."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_CHUNK = 1 << 16


class OtherContent(Exception):
    """The file begins with another line than the head that was asked for."""


class LineFile:
    """Goes on in a file that begins with the same head, and begins one that is empty."""

    def __init__(self, path: Path, head: Mapping[str, Any], *, is_new: bool = False) -> None:
        """Open the file; without half a line that a killed process has left at its end.

        Raises:
            OSError: it cannot be opened or written.
            OtherContent: it has another head; with `is_new` what it has is dropped.
        """
        self._file = path.open("ab+", buffering=0)
        try:
            if is_new:
                self._file.truncate(0)
            if not self._file.seek(0, os.SEEK_END):
                self.write(head)
                return
            self._file.seek(0)
            if self._file.readline(_CHUNK) != _encoded(head):
                raise OtherContent
            self._file.truncate(self._whole())
            self._file.seek(0, os.SEEK_END)
        except BaseException:
            self._file.close()
            raise

    def write(self, line: Mapping[str, Any]) -> None:
        """Append a line. Raises OSError if not all of it can be, and then nothing of it is."""
        data = _encoded(line)
        written = self._file.write(data)
        if written != len(data):  # the disk is full
            self._file.truncate(self._file.tell() - (written or 0))
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def close(self) -> None:
        """Idempotent."""
        self._file.close()

    def _whole(self) -> int:
        """Where the last line that is whole ends."""
        end = self._file.seek(0, os.SEEK_END)
        while end:
            begin = max(0, end - _CHUNK)
            self._file.seek(begin)
            found = self._file.read(end - begin).rfind(b"\n")
            if found >= 0:
                return begin + found + 1
            end = begin
        return 0


def _encoded(line: Mapping[str, Any]) -> bytes:
    return json.dumps(line, separators=(",", ":"), allow_nan=False).encode() + b"\n"
