"""What `cadenza policies` does with a running service."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import msgspec

from cadenza.cli.errors import UsageError
from cadenza.cli.options import ChoiceOptions, ServerOptions
from cadenza.cli.output import write, write_table
from cadenza.cli.service_client import ServiceClient
from cadenza.policies.choices import SHORT, choose
from cadenza.policies.errors import ProfileError
from cadenza.service.policy_report import (
    Comparison,
    InstalledPolicy,
    ProfileReport,
    ShadowReport,
)

_POLICIES = "/v1/policies"
_PROFILE = "/v1/policies/profile"
_SHADOW = "/v1/policies/shadow"


def list_live(server: ServerOptions, *, as_json: bool) -> int:
    """Write all policies of the service, which of them decide, and how they fare.

    Raises:
        UsageError: the service does not answer, or refuses.
    """
    client = ServiceClient(server)
    if as_json:
        write(f"{json.dumps(client.raw_report(_POLICIES), indent=2)}\n")
        return 0
    report = client.report("GET", _POLICIES)
    rows = [_row(policy, report.live) for policy in report.installed]
    write_table([("POLICY", "FROM", "DECIDES", "FAULTS", "STATE"), *rows])
    _write_options(report.live)
    _write_faults(report.live)
    if report.shadow is not None:
        write("\n")
        _write_shadow(report.shadow)
    return 0


def use_profile(server: ServerOptions, preset: str | None, choice: ChoiceOptions) -> int:
    """Let other policies decide, and write which do.

    Raises:
        UsageError: the choice is at fault, the service does not answer, or it refuses.
    """
    body = _body(preset, choice)
    report = ServiceClient(server).report("PUT", _PROFILE, body)
    _write_decisions(report.live)
    for policy in report.installed:
        if policy.active and policy.stale:
            write(f"{policy.name} is as it was loaded: its file has changed; restart to use that\n")
    return 0


def release_policy(server: ServerOptions, name: str) -> int:
    """Ask a quarantined policy again.

    Raises:
        UsageError: it is not in use, the service does not answer, or it refuses.
    """
    client = ServiceClient(server)
    before = client.report("GET", _POLICIES)
    client.report("POST", f"{_POLICIES}/{quote(name, safe='')}/release")
    shadowed = before.shadow.profile.quarantined if before.shadow is not None else ()
    was_out = name in before.live.quarantined or name in shadowed
    write(f"{name} is asked again\n" if was_out else f"{name} was not quarantined\n")
    return 0


def use_shadow(server: ServerOptions, preset: str | None, choice: ChoiceOptions) -> int:
    """Ask these policies as well, and write which they are.

    Raises:
        UsageError: as `use_profile`; or somebody else has taken the shadow away again.
    """
    body = _body(preset, choice)
    shadow = ServiceClient(server).report("PUT", _SHADOW, body).shadow
    if shadow is None:
        raise UsageError("the shadow was set, and somebody has taken it away again since")
    _write_decisions(shadow.profile)
    return 0


def show_shadow(server: ServerOptions) -> int:
    """Write what the shadow would have decided otherwise.

    Raises:
        UsageError: the service does not answer, or refuses.
    """
    shadow = ServiceClient(server).report("GET", _POLICIES).shadow
    if shadow is None:
        write("no shadow\n")
    else:
        _write_shadow(shadow)
    return 0


def drop_shadow(server: ServerOptions) -> int:
    """Ask no shadow any more.

    Raises:
        UsageError: the service does not answer, or refuses.
    """
    ServiceClient(server).report("DELETE", _SHADOW)
    write("no shadow\n")
    return 0


def _body(preset: str | None, choice: ChoiceOptions) -> bytes:
    """The choice as the service takes it, with the preset's name for its reports."""
    choices = choose(preset, choice.policy_file, choice.policy)
    if choices.faults:
        raise UsageError(str(ProfileError(*choices.faults)))
    content: dict[str, Any] = {"decisions": choices.chosen, "options": choices.options}
    return msgspec.json.encode(content | ({"preset": choices.preset} if choices.preset else {}))


def _row(policy: InstalledPolicy, live: ProfileReport) -> tuple[str, ...]:
    name = policy.name
    faults = sum(each.faults for each in live.faults if each.policy == name)
    state = "quarantined" if name in live.quarantined else "in use" if policy.active else "-"
    if policy.stale:
        state = f"{state}, file changed: restart".removeprefix("-, ")
    source = " ".join(filter(None, (policy.source, policy.version)))
    decides = ", ".join(_short(hook) for hook in policy.active)
    return name, source, decides or "-", str(faults or "-"), state


def _write_decisions(profile: ProfileReport) -> None:
    rows = [(_short(hook), ", ".join(names)) for hook, names in profile.decisions.items()]
    write_table([("DECISION", "POLICIES"), *rows])


def _write_options(profile: ProfileReport) -> None:
    for policy, given in profile.options.items():
        if given:
            told = ",".join(f"{name}={value}" for name, value in given.items())
            write(f"options of {policy}: {told}\n")


def _write_faults(profile: ProfileReport) -> None:
    for each in profile.faults:
        where = f"{each.policy} in {_short(each.hook)} ({each.process})"
        if each.faults:
            ago = f"{each.last_fault_age_s:.0f} s ago"
            write(f"last fault of {where}, {ago}: {each.last_error}\n")
        if each.passed_over or each.excused:
            write(f"{where}: {each.passed_over} times passed over, {each.excused} excused\n")


def _write_shadow(shadow: ShadowReport) -> None:
    """What is compared, and how it differs."""
    rows = [_comparison(each, shadow.profile.decisions) for each in shadow.comparisons]
    write_table([("SHADOW", "POLICIES", "ASKED", "DIFFERED", "FIRST", "FIGURE"), *rows])
    for name in shadow.profile.quarantined:
        write(f"{name} is quarantined\n")
    _write_options(shadow.profile)
    _write_faults(shadow.profile)


def _comparison(each: Comparison, decisions: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    asked, unanswered = each.asked, each.unanswered
    return (
        _short(each.hook),
        ", ".join(decisions.get(each.hook, ())),
        f"{asked}, {unanswered} unanswered" if unanswered else str(asked),
        str(each.differed),
        str(each.first_differed),
        f"{each.mean:.3g} {each.figure}" if asked > unanswered else "-",
    )


def _short(hook: str) -> str:
    return SHORT.get(hook, hook)
