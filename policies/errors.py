"""What is wrong with a profile or a plugin, said so that it can be mended."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from cadenza.policies.places import raised_at, trace_of

_DESCRIBED_CHARACTERS = 200
_QUOTED_CHARACTERS = 80
_FAULT_CHARACTERS = 1000
_TOLD_FAULTS = 20

_name_of = vars(type)["__name__"].__get__  # a metaclass may have another one


class ProfileError(Exception):
    """A profile that cannot be used, or a plugin that cannot be registered; all faults at once.

    Its text is bounded: of very many faults it has the first, and of very long ones the beginning.
    It can be printed and sent, whatever foreign code has said.
    """

    def __init__(self, *faults: str) -> None:
        self.faults = faults
        told = [printable(shortened(fault, _FAULT_CHARACTERS)) for fault in faults[:_TOLD_FAULTS]]
        if len(faults) > _TOLD_FAULTS:
            told.append(f"and {len(faults) - _TOLD_FAULTS} more")
        lines = told if len(faults) == 1 else [f"{len(faults)} faults:", *_indented(told)]
        super().__init__("\n".join(lines))


def unknown(kind: str, name: str, known: Iterable[str], plural: str = "") -> str:
    """'there is no KIND NAME', the nearest known name, and all of them in their order."""
    names = list(known)
    is_typed = len(name) <= _QUOTED_CHARACTERS
    near = difflib.get_close_matches(name, names, n=1) if is_typed else []
    guess = f" (did you mean {near[0]!r}?)" if near else ""
    plural = plural or f"{kind}s"
    listed = f"{plural} are {', '.join(names)}" if names else f"there are no {plural}"
    return f"there is no {kind} {quoted(name)}{guess}; {listed}"


def quoted(value: object) -> str:
    """A value that somebody gave, as the beginning of its `repr`."""
    try:
        text = repr(value)
    except ValueError:  # a whole number of thousands of digits
        text = f"an unreadable {type(value).__name__}"
    return shortened(text, _QUOTED_CHARACTERS)


def shortened(text: str, num_characters: int) -> str:
    """The text, cut where it is longer."""
    return text if len(text) <= num_characters else f"{text[: num_characters - 1]}…"


def said(error: BaseException) -> str:
    """The text of what foreign code raised, whose own `str` may fail."""
    try:
        return str(error)
    except BaseException:
        return _represented(error)


def describe(error: BaseException) -> str:
    """What foreign code raised, and where, in one short line that can be printed."""
    return _placed(_represented(error), error)


def reason_of(error: BaseException) -> str:
    """The same as 'TYPE: TEXT at PLACE', for a sentence. What a `ProfileError` says is enough."""
    if isinstance(error, ProfileError):
        return said(error)
    name, text = _name_of(type(error)), said(error)
    short = str.__getitem__(text, slice(_FAULT_CHARACTERS // 2))
    return _placed(f"{name}: {short}" if short else name, error)


def trace(error: BaseException) -> str:
    """Where an error came through, in one line that can be printed."""
    return printable(trace_of(error))


def _represented(error: BaseException) -> str:
    """Its `repr`, which may fail."""
    try:
        text = repr(error)
    except BaseException:
        text = _name_of(type(error))
    # A subclass of str need not obey
    return printable(str.__getitem__(text, slice(_DESCRIBED_CHARACTERS)))


def _placed(text: str, error: BaseException) -> str:
    place = raised_at(error)
    return printable(f"{text} at {place}" if place else text)


def printable(text: str) -> str:
    """Foreign text with escapes for what no log, message or terminal should get."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )


def _indented(faults: Iterable[str]) -> list[str]:
    return [f"  - {fault}" for fault in faults]
