"""What `cadenza policies` does with a running service."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import msgspec

from cadenza.cli.errors import UsageError
from cadenza.cli.options import ChoiceOptions, ServerOptions
from cadenza.cli.service_client import Answer, ServiceClient
from cadenza.cli.tables import write_table
from cadenza.policies.choices import SHORT, choose
from cadenza.policies.errors import ProfileError

_POLICIES = "/v1/policies"
_PROFILE = "/v1/policies/profile"
_SHADOW = "/v1/policies/shadow"


def list_live(server: ServerOptions, *, as_json: bool) -> int:
    """Write all policies of the service, which of them decide, and how they fare.

    Raises:
        UsageError: the service does not answer, or refuses.
    """
    report = ServiceClient(server).request("GET", _POLICIES)
    if as_json:
        sys.stdout.write(f"{json.dumps(report, indent=2)}\n")
        return 0
    live = report["live"]
    rows = [_row(policy, live) for policy in report["installed"]]
    write_table([("POLICY", "FROM", "DECIDES", "FAULTS", "STATE"), *rows])
    _write_faults(live)
    if report["shadow"] is not None:
        sys.stdout.write("\n")
        _write_shadow(report["shadow"])
    return 0


def use_profile(server: ServerOptions, preset: str | None, choice: ChoiceOptions) -> int:
    """Let other policies decide, and write which do.

    Raises:
        UsageError: the choice is at fault, the service does not answer, or it refuses.
    """
    body = _body(preset, choice)
    _write_decisions(ServiceClient(server).request("PUT", _PROFILE, body)["live"])
    return 0


def release_policy(server: ServerOptions, name: str) -> int:
    """Ask a quarantined policy again.

    Raises:
        UsageError: it is not in use, the service does not answer, or it refuses.
    """
    ServiceClient(server).request("POST", f"{_POLICIES}/{quote(name, safe='')}/release")
    sys.stdout.write(f"{name} is asked\n")
    return 0


def use_shadow(server: ServerOptions, preset: str | None, choice: ChoiceOptions) -> int:
    """Ask these policies as well, and write which they are.

    Raises:
        UsageError: as `use_profile`.
    """
    body = _body(preset, choice)
    _write_decisions(ServiceClient(server).request("PUT", _SHADOW, body)["shadow"]["profile"])
    return 0


def show_shadow(server: ServerOptions) -> int:
    """Write what the shadow would have decided otherwise.

    Raises:
        UsageError: the service does not answer, or refuses.
    """
    report = ServiceClient(server).request("GET", _POLICIES)
    if report["shadow"] is None:
        sys.stdout.write("no shadow\n")
    else:
        _write_shadow(report["shadow"])
    return 0


def drop_shadow(server: ServerOptions) -> int:
    """Ask no shadow any more.

    Raises:
        UsageError: the service does not answer, or refuses.
    """
    ServiceClient(server).request("DELETE", _SHADOW)
    sys.stdout.write("no shadow\n")
    return 0


def _body(preset: str | None, choice: ChoiceOptions) -> bytes:
    """The choice as the service takes it, with the preset's name for its reports."""
    choices = choose(preset, choice.policy_file, choice.policy)
    if choices.faults:
        raise UsageError(str(ProfileError(*choices.faults)))
    content: dict[str, Any] = {"decisions": choices.chosen, "options": choices.options}
    return msgspec.json.encode(content | ({"preset": choices.preset} if choices.preset else {}))


def _row(policy: Mapping[str, Any], live: Answer) -> tuple[str, ...]:
    name = policy["name"]
    faults = sum(each["faults"] for each in live["faults"] if each["policy"] == name)
    state = "quarantined" if name in live["quarantined"] else "in use" if policy["active"] else "-"
    source = " ".join(filter(None, (policy["source"], policy["version"])))
    decides = ", ".join(_short(hook) for hook in policy["active"])
    return name, source, decides or "-", str(faults or "-"), state


def _write_decisions(profile: Answer) -> None:
    rows = [(_short(hook), ", ".join(names)) for hook, names in profile["decisions"].items()]
    write_table([("DECISION", "POLICIES"), *rows])


def _write_faults(profile: Answer) -> None:
    for each in profile["faults"]:
        where = f"{each['policy']} in {_short(each['hook'])}"
        sys.stdout.write(f"last fault of {where}: {each['last_error']}\n")


def _write_shadow(shadow: Answer) -> None:
    """What is compared, and how it differs."""
    profile = shadow["profile"]
    rows = [_comparison(each, profile["decisions"]) for each in shadow["comparisons"]]
    write_table([("SHADOW", "POLICIES", "ASKED", "DIFFERED", "FIRST", "FIGURE"), *rows])
    for name in profile["quarantined"]:
        sys.stdout.write(f"{name} is quarantined\n")
    _write_faults(profile)


def _comparison(
    compared: Mapping[str, Any], decisions: Mapping[str, Sequence[str]]
) -> tuple[str, ...]:
    hook = compared["hook"]
    asked, unanswered = compared["asked"], compared["unanswered"]
    figure = f"{compared['mean']:.3g} {compared['figure']}" if asked > unanswered else "-"
    return (
        _short(hook),
        ", ".join(decisions.get(hook, ())),
        f"{asked}, {unanswered} unanswered" if unanswered else str(asked),
        str(compared["differed"]),
        str(compared["first_differed"]),
        figure,
    )


def _short(hook: str) -> str:
    return SHORT.get(hook, hook)
