"""Where foreign code raised, or was interrupted, in a few words.

Only code objects are looked at, by the names of their files: what belongs to a policy may be made
to run when it is looked at, and this runs in a signal handler too. Frames are walked, never kept.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from itertools import dropwhile
from types import CodeType, FrameType, TracebackType
from typing import NamedTuple

import pluggy

_NAME_CHARACTERS = 60
_TOLD_SPOTS = 20
_WALKED = 10_000  # frames at most

_HERE = os.path.dirname(__file__)
_BUILTIN = os.path.join(_HERE, "builtin", "")
_SIBLINGS = ("policies", "testing", "cli", "engine", "service", "scheduler", "wire")
_NOBODYS = (
    *(os.path.join(os.path.dirname(_HERE), name, "") for name in _SIBLINGS),
    os.path.join(os.path.dirname(pluggy.__file__), ""),
    "<frozen ",
)
_STANDARD = os.path.join(os.path.dirname(os.__file__), "")
_INSTALLED = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))

_traceback_of: Callable[[BaseException], TracebackType | None]
_traceback_of = vars(BaseException)["__traceback__"].__get__


class _Spot(NamedTuple):
    """A line that was being executed."""

    file: str
    line: int
    function: str

    def told(self, file: str) -> str:
        return f"{file}:{self.line} in {self.function[:_NAME_CHARACTERS]}"


def raised_at(error: BaseException) -> str:
    """'FILE:LINE in FUNCTION', of the innermost frame in the code of whoever was called.

    Empty where no foreign code raised it. What a library raises is told by the line that called the
    library, unless that is part of the policy's own package.
    """
    return _told(_innermost([*_raised(error)]))


def interrupted_at(frame: FrameType | None, below: CodeType) -> str:
    """The same of a running frame and its callers, as far as `below`."""
    spots: list[_Spot] = []
    while frame is not None and frame.f_code is not below and len(spots) < _WALKED:
        spots.append(_spot(frame.f_code, frame.f_lineno))
        frame = frame.f_back
    return _told(_innermost(spots[::-1]))


def trace_of(error: BaseException) -> str:
    """Where an error came through from the first foreign line on, with whole paths, in one line."""
    spots = [*dropwhile(lambda spot: _owner(spot.file) is None, _raised(error))]
    return " > ".join(spot.told(spot.file) for spot in spots[-_TOLD_SPOTS:])


def _raised(error: BaseException) -> Iterator[_Spot]:
    trace = _traceback_of(error)
    for _ in range(_WALKED):
        if trace is None:
            return
        yield _spot(trace.tb_frame.f_code, trace.tb_lineno)
        trace = trace.tb_next


def _spot(code: CodeType, line: int | None) -> _Spot:
    file, function = code.co_filename, code.co_name
    # Subclasses of str run code of their own
    return _Spot(
        file if type(file) is str else "?",
        line or 0,
        function if type(function) is str else "?",
    )


def _innermost(spots: Sequence[_Spot]) -> _Spot | None:
    own, unnamed, package = None, None, None
    for spot in spots:
        owner = _owner(spot.file)
        if owner is None:
            continue
        if own is None and package is None:
            package = owner
        if spot.file.startswith("<"):  # made by `exec`, as a dataclass's methods are
            unnamed = spot
        elif owner in ("", package):
            own = spot
    return own or unnamed


def _owner(file: str) -> str | None:
    """The installed package that a file is part of; "": it is of none, None: nobody's code."""
    if file.startswith(_BUILTIN):
        return ""
    if file.startswith(_NOBODYS):
        return None
    for folder in _INSTALLED:
        if folder in file:
            return file.rpartition(folder)[2].partition(os.sep)[0]
    return None if file.startswith(_STANDARD) else ""


def _told(spot: _Spot | None) -> str:
    if spot is None:
        return ""
    folder, name = os.path.split(spot.file)
    if name == "__init__.py":
        name = os.path.join(os.path.basename(folder), name)
    return spot.told(name[-_NAME_CHARACTERS:])
