"""What is wrong with a profile or a plugin, said so that it can be mended."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_DESCRIBED_CHARACTERS = 200


class ProfileError(Exception):
    """A profile that cannot be used, or a plugin that cannot be registered; all faults at once."""

    def __init__(self, *faults: str) -> None:
        self.faults = faults
        lines = faults if len(faults) == 1 else (f"{len(faults)} faults:", *_indented(faults))
        super().__init__("\n".join(lines))


def unknown(kind: str, name: str, known: Iterable[str], plural: str = "") -> str:
    """'there is no KIND NAME', the nearest known name, and all of them in their order."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1)
    guess = f" (did you mean {near[0]!r}?)" if near else ""
    plural = plural or f"{kind}s"
    listed = f"{plural} are {', '.join(names)}" if names else f"there are no {plural}"
    return f"there is no {kind} {name!r}{guess}; {listed}"


def describe(error: BaseException) -> str:
    """What foreign code raised, in one short line; its own `repr` may fail."""
    try:
        text = repr(error)
    except BaseException:
        text = type(error).__name__
    return str.__getitem__(text, slice(_DESCRIBED_CHARACTERS))  # a subclass of str need not obey


def _indented(faults: Iterable[str]) -> list[str]:
    return [f"  - {fault}" for fault in faults]
