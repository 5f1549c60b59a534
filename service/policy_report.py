"""What an administrator is told of policies, the same over HTTP and gRPC."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from cadenza.policies.contract import OBSERVERS, hooks_of
from cadenza.policies.discovery import Catalog
from cadenza.policies.markers import HOOKSPEC_VERSION
from cadenza.service.front_policies import FrontPolicies
from cadenza.wire.messages import PoliciesState
from cadenza.wire.policies import ProfileState


class InstalledPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """A policy that a profile may name."""

    name: str
    hooks: Sequence[str]
    source: str  # "built in", a distribution, or a file
    version: str | None  # of the distribution
    requires_hookspec: str | None
    active: Sequence[str]  # the hooks that it is asked, or told, by the live profile


class HookFaults(msgspec.Struct, frozen=True, kw_only=True):
    """How often a hook of a policy failed since its process started, or the shadow was set."""

    policy: str
    hook: str
    faults: int
    last_error: str


class ProfileReport(msgspec.Struct, frozen=True, kw_only=True):
    """Which policies are asked, and how they fare."""

    preset: str | None  # which the profile began with
    decisions: Mapping[str, Sequence[str]]  # hook -> policies that it asks
    observers: Mapping[str, Sequence[str]]  # hook -> policies that it tells
    options: Mapping[str, Mapping[str, Any]]  # policy -> those that it was given
    faults: Sequence[HookFaults]
    quarantined: Sequence[str]


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Answers to one hook, live and shadow, since either profile was last changed."""

    hook: str
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
    front: FrontPolicies,
    *,
    preset: str | None,
    shadow_preset: str | None,
) -> PolicyReport:
    """Put together what both processes know."""
    live = _profile(state.live, preset)
    live = msgspec.structs.replace(
        live,
        faults=_added(live.faults, _front_faults(front)),
        quarantined=tuple(dict.fromkeys((*live.quarantined, *front.quarantined))),
    )
    shadow = None
    if state.shadow is not None:
        shadow = ShadowReport(
            profile=_profile(state.shadow.profile, shadow_preset),
            comparisons=[
                msgspec.convert(each, Comparison, from_attributes=True)
                for each in state.shadow.comparisons
            ],
        )
    return PolicyReport(
        hookspec_version=HOOKSPEC_VERSION,
        installed=_installed(catalog, state.live.decisions),
        live=live,
        shadow=shadow,
    )


def _profile(state: ProfileState, preset: str | None) -> ProfileReport:
    asked = state.decisions.items()
    return ProfileReport(
        preset=preset,
        decisions={hook: names for hook, names in asked if hook not in OBSERVERS},
        observers={hook: names for hook, names in asked if hook in OBSERVERS},
        options=state.options,
        faults=[msgspec.convert(each, HookFaults, from_attributes=True) for each in state.faults],
        quarantined=state.quarantined,
    )


def _front_faults(front: FrontPolicies) -> list[HookFaults]:
    errors = front.last_errors
    return [
        HookFaults(
            policy=each.policy,
            hook=each.hook,
            faults=each.faults,
            last_error=errors[each.policy, each.hook],
        )
        for each in front.faults
    ]


def _added(engine: Sequence[HookFaults], front: Sequence[HookFaults]) -> list[HookFaults]:
    """Both, those of one hook counted together."""
    counts = {(each.policy, each.hook): each for each in engine}
    for each in front:
        other = counts.get((each.policy, each.hook))
        faults = each.faults + (other.faults if other else 0)
        counts[each.policy, each.hook] = msgspec.structs.replace(each, faults=faults)
    return [*counts.values()]


def _installed(catalog: Catalog, decisions: Mapping[str, Sequence[str]]) -> list[InstalledPolicy]:
    return [
        InstalledPolicy(
            name=name,
            hooks=hooks_of(found.cls),
            source=found.source,
            version=found.version,
            requires_hookspec=getattr(found.cls, "requires_hookspec", None),
            active=[hook for hook, names in decisions.items() if name in names],
        )
        for name, found in sorted(catalog.policies.items())
    ]
