"""What the engine tells of its policies when it is asked."""

from __future__ import annotations

from typing import Any

import msgspec


class HookFaults(msgspec.Struct, frozen=True, array_like=True):
    """How often a hook of a policy gave no answer, since the engine started or the shadow was set.

    Hooks that always gave one are left out.
    """

    policy: str
    hook: str
    faults: int
    last_error: str
    last_fault_age_s: float = 0.0
    passed_over: int = 0
    excused: int = 0


class ProfileState(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """One profile's policies."""

    decisions: dict[str, tuple[str, ...]]  # hook -> policies that it asks or tells
    options: dict[str, dict[str, Any]]  # policy -> those that it was given
    faults: tuple[HookFaults, ...]  # of hooks that gave no answer, also of policies that have left
    quarantined: tuple[str, ...]


class Comparison(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Answers to one hook, live and shadow, since either profile was last changed."""

    hook: str
    asked: int
    unanswered: int  # the shadow's policy failed or was passed over; not compared
    differed: int
    first_differed: int  # another request would have come first
    mean: float  # of the figure, over all that were compared
    figure: str  # what that is


class ShadowState(msgspec.Struct, frozen=True, array_like=True):
    """The profile beside the live one."""

    profile: ProfileState
    comparisons: tuple[Comparison, ...]  # one a decision
