"""What somebody may have meant who wrote a name that is none."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from cadenza.policies.errors import quoted, unknown

_TYPED_CHARACTERS = 80  # more is no slip of somebody's fingers


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known name that looks most like this one; None if none does."""
    if len(name) > _TYPED_CHARACTERS:
        return None
    near = difflib.get_close_matches(name, list(known), 1, cutoff)
    return near[0] if near else None


def guess(name: str, known: Iterable[str]) -> str:
    """' (did you mean NEAREST?)', to be said after the name; empty if there is none."""
    near = nearest(name, known)
    return "" if near is None else f" (did you mean {near!r}?)"


def unknown_policy(name: str, known: Iterable[str]) -> str:
    """'there is no policy NAME', with the nearest name, or with all of the many if none is near."""
    names = list(known)
    near = guess(name, names)
    if near:
        return f"there is no policy {quoted(name)}{near}"
    return unknown("policy", name, names, "policies")
