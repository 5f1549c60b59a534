"""What an administrator is told of policies, the same over HTTP and gRPC."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from cadenza.policies.contract import OBSERVERS, hooks_of
from cadenza.policies.discovery import Catalog
from cadenza.policies.markers import HOOKSPEC_VERSION
from cadenza.service.front_policies import FrontPolicies
from cadenza.wire import policies as wire
from cadenza.wire.messages import PoliciesState
from cadenza.wire.policies import ProfileState, ShadowState

_ENGINE, _FRONT = "engine", "front"  # processes
_NO_SHADOW = ShadowState(ProfileState(decisions={}, options={}, faults=(), quarantined=()), ())

T = TypeVar("T")


class InstalledPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """A policy that a profile may name."""

    name: str
    hooks: Sequence[str]
    source: str  # "built in", a distribution, or a file
    version: str | None  # of the distribution
    requires_hookspec: str | None
    active: Sequence[str]  # the hooks that it is asked, or told, by the live profile
    stale: bool = False  # its file has changed since it was loaded, and only a restart loads it


class HookFaults(msgspec.Struct, frozen=True, kw_only=True):
    """How often a hook of a policy gave no answer since its process started, or the shadow was set.

    Hooks that always gave one are left out.
    """

    policy: str
    hook: str
    process: str  # which asks the hook: "engine" or "front"
    faults: int
    last_error: str
    last_fault_age_s: float = 0.0
    passed_over: int = 0  # not asked: in quarantine, at rest, at fault, or for lack of time
    excused: int = 0  # interrupted without being at fault


class ProfileReport(msgspec.Struct, frozen=True, kw_only=True):
    """Which policies are asked, and how they fare."""

    preset: str | None  # which the profile began with
    decisions: Mapping[str, Sequence[str]]  # hook -> policies that it asks
    observers: Mapping[str, Sequence[str]]  # hook -> policies that it tells
    options: Mapping[str, Mapping[str, Any]]  # policy -> those that it was given
    faults: Sequence[HookFaults]
    quarantined: Sequence[str]  # in either process; by `faults` one sees in which


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Answers to one hook, live and shadow, since either profile was last changed."""

    hook: str
    process: str  # which asks it: "engine" or "front"
    asked: int
    unanswered: int  # the shadow's policy failed or was passed over; not compared
    differed: int
    first_differed: int  # another request would have come first
    figure: str  # what `mean` is the mean of
    mean: float  # over all that were compared


class ShadowReport(msgspec.Struct, frozen=True, kw_only=True):
    """The profile beside the live one, and what it would have changed."""

    profile: ProfileReport
    comparisons: Sequence[Comparison]


class PolicyReport(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about policies."""

    hookspec_version: str
    installed: Sequence[InstalledPolicy]
    live: ProfileReport
    shadow: ShadowReport | None


def report(
    state: PoliciesState,
    catalog: Catalog,
    stale: Collection[str],
    front: FrontPolicies,
    *,
    preset: str | None,
    shadow_preset: str | None,
) -> PolicyReport:
    """Put together what both processes know. `stale`: policies whose files have changed."""
    live = _profile(state.live, preset, front.hook_faults, front.quarantined)
    shadow = None
    if state.shadow is not None:
        # For a moment after a change only one of the processes may have it
        ours = front.shadow_state or _NO_SHADOW
        shadow = ShadowReport(
            profile=_profile(
                state.shadow.profile, shadow_preset, ours.profile.faults, ours.profile.quarantined
            ),
            comparisons=[
                *(_told(Comparison, each, _ENGINE) for each in state.shadow.comparisons),
                *(_told(Comparison, each, _FRONT) for each in ours.comparisons),
            ],
        )
    return PolicyReport(
        hookspec_version=HOOKSPEC_VERSION,
        installed=_installed(catalog, stale, state.live.decisions),
        live=live,
        shadow=shadow,
    )


def _profile(
    state: ProfileState,
    preset: str | None,
    front_faults: Sequence[wire.HookFaults],
    front_quarantined: Sequence[str],
) -> ProfileReport:
    asked = state.decisions.items()
    return ProfileReport(
        preset=preset,
        decisions={hook: names for hook, names in asked if hook not in OBSERVERS},
        observers={hook: names for hook, names in asked if hook in OBSERVERS},
        options=state.options,
        faults=[
            *(_told(HookFaults, each, _ENGINE) for each in state.faults),
            *(_told(HookFaults, each, _FRONT) for each in front_faults),
        ],
        quarantined=tuple(dict.fromkeys((*state.quarantined, *front_quarantined))),
    )


def _told(kind: Callable[..., T], told: msgspec.Struct, process: str) -> T:
    """What a process told, as one of the report's structs, which have the same fields."""
    return kind(process=process, **msgspec.structs.asdict(told))


def _installed(
    catalog: Catalog, stale: Collection[str], decisions: Mapping[str, Sequence[str]]
) -> list[InstalledPolicy]:
    return [
        InstalledPolicy(
            name=name,
            hooks=hooks_of(found.cls),
            source=found.source,
            version=found.version,
            requires_hookspec=getattr(found.cls, "requires_hookspec", None),
            active=[hook for hook, names in decisions.items() if name in names],
            stale=name in stale,
        )
        for name, found in sorted(catalog.policies.items())
    ]
