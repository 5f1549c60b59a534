"""Between the protobuf messages of the policy service and our own words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from google.protobuf import struct_pb2

from cadenza.service.detokenizer import encodable
from cadenza.service.policy_report import (
    HookFaults,
    InstalledPolicy,
    PolicyReport,
    ProfileReport,
    ShadowReport,
)
from cadenza.v1 import policy_pb2 as pb

_EXACT = 1 << 53  # up to here every whole number has a double of its own


def to_content(profile: pb.Profile) -> dict[str, Any]:
    """The profile as a profile file has it. Whole numbers are whole again."""
    content: dict[str, Any] = {
        "decisions": {
            decision: [*policies.names] for decision, policies in profile.decisions.items()
        },
        "options": {
            policy: {name: _value(value) for name, value in options.fields.items()}
            for policy, options in profile.options.items()
        },
    }
    return content | ({"preset": profile.preset} if profile.preset else {})


def to_report(report: PolicyReport) -> pb.PolicyReport:
    return pb.PolicyReport(
        hookspec_version=report.hookspec_version,
        installed=map(_installed, report.installed),
        live=_profile(report.live),
        shadow=None if report.shadow is None else _shadow(report.shadow),
    )


def _value(value: struct_pb2.Value) -> Any:
    match value.WhichOneof("kind"):
        case "number_value":
            return _number(value.number_value)
        case "string_value":
            return value.string_value
        case "bool_value":
            return value.bool_value
        case "list_value":
            return [_value(each) for each in value.list_value.values]
        case "struct_value":
            return {name: _value(each) for name, each in value.struct_value.fields.items()}
        case _:
            return None


def _number(number: float) -> int | float:
    """A Struct has no whole numbers, and options may want them: those that it holds exactly."""
    return int(number) if number.is_integer() and abs(number) <= _EXACT else number


def _installed(policy: InstalledPolicy) -> pb.InstalledPolicy:
    return pb.InstalledPolicy(
        name=policy.name,
        hooks=policy.hooks,
        source=encodable(policy.source),
        version=policy.version,
        requires_hookspec=policy.requires_hookspec,
        active=policy.active,
        stale=policy.stale,
    )


def _profile(profile: ProfileReport) -> pb.ProfileReport:
    return pb.ProfileReport(
        preset=profile.preset or "",
        decisions=_names(profile.decisions),
        observers=_names(profile.observers),
        options={policy: _struct(options) for policy, options in profile.options.items()},
        faults=map(_faults, profile.faults),
        quarantined=profile.quarantined,
    )


def _names(policies: Mapping[str, Sequence[str]]) -> dict[str, pb.PolicyNames]:
    return {hook: pb.PolicyNames(names=names) for hook, names in policies.items()}


def _struct(options: Mapping[str, Any]) -> struct_pb2.Struct:
    struct = struct_pb2.Struct()
    struct.update(msgspec.to_builtins(dict(options)))  # a date in a profile file is text here
    return struct


def _faults(faults: HookFaults) -> pb.HookFaults:
    return pb.HookFaults(
        policy=faults.policy,
        hook=faults.hook,
        process=faults.process,
        faults=faults.faults,
        last_error=encodable(faults.last_error),
        last_fault_age_s=faults.last_fault_age_s,
        passed_over=faults.passed_over,
        excused=faults.excused,
    )


def _shadow(shadow: ShadowReport) -> pb.ShadowReport:
    comparisons = [
        pb.Comparison(
            hook=each.hook,
            process=each.process,
            asked=each.asked,
            unanswered=each.unanswered,
            differed=each.differed,
            first_differed=each.first_differed,
            figure=each.figure,
            mean=each.mean,
        )
        for each in shadow.comparisons
    ]
    return pb.ShadowReport(profile=_profile(shadow.profile), comparisons=comparisons)
