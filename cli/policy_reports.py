"""What `cadenza policies list` and `show` write."""

from __future__ import annotations

import inspect
import json
from collections.abc import Sequence
from pathlib import Path

from cadenza.cli.errors import UsageError
from cadenza.cli.options import PolicyOptions
from cadenza.cli.output import write, write_table
from cadenza.cli.profile import allowed_plugins, configure
from cadenza.policies.choices import SHORT
from cadenza.policies.contract import OBSERVERS, hooks_of
from cadenza.policies.discovery import Found, discover
from cadenza.policies.errors import ProfileError
from cadenza.policies.guesses import unknown_policy
from cadenza.policies.markers import HOOKSPEC_VERSION
from cadenza.policies.options import Option, options_of
from cadenza.policies.profile import OBSERVER, Profile


def report_all(flags: PolicyOptions, *, as_json: bool) -> int:
    """Write a table of all policies.

    Raises:
        UsageError: a flag or a plugin is at fault, as `cadenza serve` would say.
    """
    try:
        configured = configure(flags)
    except ProfileError as error:
        raise UsageError(str(error)) from error
    active = _active(configured.profile)
    found = sorted(configured.library.catalog.policies.items())
    if as_json:
        policies = [_record(name, each, active.get(name, [])) for name, each in found]
        report = {"hookspec_version": HOOKSPEC_VERSION, "policies": policies}
        write(f"{json.dumps(report, indent=2)}\n")
    else:
        rows = [_row(name, each, active.get(name, [])) for name, each in found]
        write_table([("POLICY", "FROM", "HOOKSPEC", "DECIDES", "HOOKS"), *rows])
    return 0


def explain(name: str, plugins_dir: Path | None) -> int:
    """Write what one policy does and takes.

    Raises:
        UsageError: there is no such policy, or a plugin is at fault.
    """
    catalog = discover(plugins_dir, allowed_plugins())
    if catalog.faults:
        raise UsageError(str(ProfileError(*catalog.faults)))
    if name not in catalog.policies:
        raise UsageError(unknown_policy(name, sorted(catalog.policies)))
    found = catalog.policies[name]
    try:
        options = [_option(option) for option in options_of(found.cls)]
    except ProfileError as error:
        raise UsageError(f"policy {name!r}: {error}") from error
    lines = [f"{name}, from {found.told}", ""]
    lines += [inspect.getdoc(found.cls) or "It has no description.", ""]
    lines += ["Hooks:", *(f"  {_hook(hook, name)}" for hook in hooks_of(found.cls))]
    lines += ["Options:", *(options or ["  none"])]
    lines += [f"Hookspec: {_requires(found)} (this is {HOOKSPEC_VERSION})"]
    write("\n".join(lines) + "\n")
    return 0


def _active(profile: Profile) -> dict[str, list[str]]:
    """Policy name to the hooks that it is asked, or told, by this profile."""
    active: dict[str, list[str]] = {}
    for hook in (*(hook for hook in SHORT if hook != OBSERVER), *OBSERVERS):
        for policy in profile.deciding(hook):
            active.setdefault(policy, []).append(hook)
    return active


def _record(name: str, found: Found, active: Sequence[str]) -> dict[str, object]:
    return {
        "name": name,
        "hooks": list(hooks_of(found.cls)),
        "source": found.source,
        "version": found.version,
        "requires_hookspec": getattr(found.cls, "requires_hookspec", None),
        "active": list(active),
    }


def _row(name: str, found: Found, active: Sequence[str]) -> tuple[str, ...]:
    hooks = ", ".join(hooks_of(found.cls))
    decides = ", ".join(SHORT.get(hook, hook) for hook in active)
    return name, found.told, _requires(found), decides or "-", hooks


def _requires(found: Found) -> str:
    return getattr(found.cls, "requires_hookspec", None) or "any"


def _hook(hook: str, policy: str) -> str:
    if hook in SHORT:
        return f"{hook} (--policy {SHORT[hook]}={policy})"
    return (
        f"{hook} (told whenever the policy is in use; --policy {OBSERVER}={policy} does only that)"
    )


def _option(option: Option) -> str:
    default = "must be given" if option.is_required else f"default {option.default!r}"
    return f"  {option.name}: {option.type}, {default}"
