"""From flags and environment to a profile that has been built once, and can be built again."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from cadenza.cli.options import PolicyOptions
from cadenza.policies.choices import choose
from cadenza.policies.contract import ENGINE_HOOKS, FRONT_HOOKS
from cadenza.policies.discovery import ALLOW_LIST
from cadenza.policies.library import LIMIT_S, Library, in_time, too_late
from cadenza.policies.profile import Profile
from cadenza.wire.messages import PolicyConfig

TRACE = "CADENZA_TRACE_PLUGINS"


@dataclass(frozen=True, slots=True, kw_only=True)
class Configured:
    """What the flags mean."""

    config: PolicyConfig  # for the engine process
    library: Library
    profile: Profile
    preset: str | None  # which the profile begins with


def configure(
    flags: PolicyOptions,
    environment: Mapping[str, str] = os.environ,
    *,
    may_set_watermark: bool = True,
    is_tried: bool = False,
    limit_s: float = LIMIT_S,
) -> Configured:
    """Find all policies and build the profile that the flags describe.

    Args:
        flags: what was chosen, and where else policies are.
        environment: which plugins may be loaded, and whether calls are logged.
        may_set_watermark: whether that of the preset is applied.
        is_tried: whether all hooks of chosen policies are called once, as for a live change.
        limit_s: for building and trying them.

    Raises:
        ProfileError: everything that is wrong with it, with the flags and with plugins.
    """
    choices = choose(flags.scheduling_policy, flags.policy_file, flags.policy)
    allowed = allowed_plugins(environment)
    trace = environment.get(TRACE, "") not in ("", "0")
    library = Library(flags.plugins_dir, allowed, trace=trace)
    chosen, options, faults = choices.chosen, choices.options, choices.faults
    if is_tried:
        profile = in_time(
            lambda: library.tried(chosen, options, ENGINE_HOOKS + FRONT_HOOKS, faults=faults),
            too_late(chosen, None, limit_s),
            limit_s,
        )
    else:
        profile = library.profile(chosen, options, faults=faults)
    config = PolicyConfig(
        chosen=dict(choices.chosen),
        options={policy: dict(options) for policy, options in choices.options.items()},
        plugins_dir=None if flags.plugins_dir is None else str(flags.plugins_dir.absolute()),
        plugins=allowed,
        trace=trace,
        watermark=choices.watermark if may_set_watermark else None,
        digests=library.digests(profile),
    )
    return Configured(
        config=config,
        library=library,
        profile=profile,
        preset=choices.preset,
    )


def allowed_plugins(environment: Mapping[str, str] = os.environ) -> tuple[str, ...] | None:
    """The allow-list; None if there is none, and all installed plugins may be loaded."""
    names = environment.get(ALLOW_LIST)
    if names is None:
        return None
    return tuple(name.strip() for name in names.split(",") if name.strip())
