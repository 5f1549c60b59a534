"""What an operator chose: a preset, a profile file and `--policy` flags, put into one profile.

Later layers win: flags over the file, the file over the preset. Nothing is looked up here but
presets and decisions; whether policies exist, and take these options, the profile says. What comes
over a network says the same as a file.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from cadenza.policies.builtin import DEFAULTS
from cadenza.policies.errors import quoted, unknown
from cadenza.policies.presets import PRESETS, Preset
from cadenza.policies.profile import LISTS, OBSERVER

_SHORT = {
    "lengths": "predict_lengths",
    "budget": "plan_budget",
    "order": "order_admissions",
    "reserve": "reserve_blocks",
    "victims": "select_victims",
    "displacement": "allow_displacement",
    "preemption": "choose_preemption",
    "eviction": "rank_cached_blocks",
    "guard": "guard_starvation",
    "gate": "gate_arrivals",
    "shed": "shed_load",
}
DECISIONS: dict[str, str] = {
    **_SHORT,
    **{hook: hook for hook in DEFAULTS if hook not in _SHORT.values()},
    "observer": OBSERVER,
}  # as flags and files have them -> as the profile has them
SHORT: dict[str, str] = {hook: short for short, hook in DECISIONS.items()}

_KEYS = ("preset", "decisions", "options")


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """Policies by hook, and options by policy; and what was wrong in the way they were given."""

    chosen: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    preset: str | None = None  # which they begin with
    watermark: float | None = None  # what the preset wants
    faults: tuple[str, ...] = ()


class _Layer:
    """What one source says."""

    def __init__(self) -> None:
        self.chosen: dict[str, tuple[str, ...]] = {}
        self.options: dict[str, dict[str, Any]] = {}
        self.faults: list[str] = []
        self.preset: str | None = None

    def choose(self, where: str, decision: str, policies: Sequence[str]) -> None:
        hook = DECISIONS.get(decision, decision)
        if hook not in SHORT:
            self.faults.append(f"{where}: " + unknown("decision", decision, DECISIONS))
        elif hook not in LISTS and len({*self.chosen.get(hook, ()), *policies}) > 1:
            several = ", ".join([*self.chosen.get(hook, ()), *policies])
            self.faults.append(f"{where}: {decision} is decided by one policy, not by {several}")
        else:
            self.chosen[hook] = tuple(dict.fromkeys((*self.chosen.get(hook, ()), *policies)))

    def give(self, where: str, policy: str, options: Mapping[str, Any]) -> None:
        """Options of one policy, which must not contradict those that it has."""
        given = self.options.setdefault(policy, {})
        for name, value in options.items():
            if given.setdefault(name, value) != value:
                self.faults.append(
                    f"{where}: {policy} has {name}={given[name]} already; a policy is built once"
                )


def choose(
    preset: str | None = None, file: Path | None = None, flags: Sequence[str] = ()
) -> Choices:
    """Put the layers together. Faults are in the result, so that they can be told with others."""
    from_file = _Layer() if file is None else _read_file(file)
    return _combined(preset or from_file.preset, from_file, _read_flags(flags))


def choices_of(content: Mapping[str, Any]) -> Choices:
    """What a message says that has the tables of a profile file. Faults are in the result."""
    layer = _Layer()
    _read_content(layer, "profile", content)
    return _combined(layer.preset, layer)


def _combined(preset: str | None, *given: _Layer) -> Choices:
    """The layers over the preset, the later ones first."""
    from_preset = _Layer()
    watermark = None
    if preset is not None and preset not in PRESETS:
        from_preset.faults.append(unknown("preset", preset, PRESETS))
    elif preset is not None:
        from_preset = _expanded(PRESETS[preset])
        watermark = PRESETS[preset].watermark
    layers = (from_preset, *given)
    chosen = {hook: names for layer in layers for hook, names in layer.chosen.items()}
    return Choices(
        chosen=chosen,
        options=_without_overruled(layers, chosen),
        preset=preset,
        watermark=watermark,
        faults=tuple(fault for layer in layers for fault in layer.faults),
    )


def _without_overruled(
    layers: Sequence[_Layer], chosen: Mapping[str, tuple[str, ...]]
) -> dict[str, dict[str, Any]]:
    """Options of all layers, without those of policies that another layer took out again."""
    active = {policy for names in chosen.values() for policy in names}
    named = {policy for layer in layers for names in layer.chosen.values() for policy in names}
    merged: dict[str, dict[str, Any]] = {}
    for layer in layers:
        for policy, options in layer.options.items():
            if options and (policy in active or policy not in named):
                merged[policy] = {**merged.get(policy, {}), **options}
    return merged


def _expanded(preset: Preset) -> _Layer:
    layer = _Layer()
    for decision, policy in preset.decisions.items():
        layer.choose("preset", decision, [policy])
    for policy, options in preset.options.items():
        layer.give("preset", policy, options)
    return layer


def _read_flags(flags: Sequence[str]) -> _Layer:
    layer = _Layer()
    for flag in flags:
        where = f"--policy {flag}"
        decision, _, policy = flag.partition("=")
        policy, colon, text = policy.partition(":")
        pairs = [pair.partition("=") for pair in text.split(",")] if colon else []
        if not (decision and policy and all(name and equals for name, equals, _ in pairs)):
            layer.faults.append(
                f"{where} is not of the form DECISION=POLICY or DECISION=POLICY:key=value,..."
            )
            continue
        name, comma, rest = policy.partition(",")
        if comma:
            meant = f"{decision}={name}:{rest}" if "=" in rest else f"{decision}={name}"
            why = "options follow a ':'" if "=" in rest else "each policy has a flag of its own"
            layer.faults.append(f"{where}: {why}, as in --policy {meant}")
            continue
        layer.choose(where, decision, [policy])
        layer.give(where, policy, {name: value for name, _, value in pairs})
    return layer


def _read_file(file: Path) -> _Layer:
    layer = _Layer()
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:  # not UTF-8 and not TOML are ValueErrors
        reason = error.strerror if isinstance(error, OSError) else error
        layer.faults.append(f"{file} cannot be read: {reason}")
        return layer
    except RecursionError:
        layer.faults.append(f"{file} cannot be read: it is nested too deeply")
        return layer
    _read_content(layer, str(file), content)
    return layer


def _read_content(layer: _Layer, where: str, content: Mapping[str, Any]) -> None:
    layer.faults += [
        f"{where}: " + unknown("key", key, _KEYS) for key in content if key not in _KEYS
    ]
    preset = content.get("preset")
    if preset is not None and not isinstance(preset, str):
        layer.faults.append(f"{where}: preset must be a name, and is {quoted(preset)}")
    else:
        layer.preset = preset
    for decision, names in _table(layer, where, content, "decisions").items():
        policies = [names] if isinstance(names, str) else names
        if isinstance(policies, list) and all(isinstance(name, str) for name in policies):
            layer.choose(where, decision, policies)
        else:
            layer.faults.append(f"{where}: {decision} must be a name or a list of names")
    for policy, options in _table(layer, where, content, "options").items():
        if isinstance(options, dict):
            layer.faults += _untransportable(where, policy, options)
            layer.give(where, policy, options)
        else:
            layer.faults.append(f"{where}: [options.{policy}] must be a table")


def _untransportable(where: str, policy: str, options: Mapping[str, Any]) -> list[str]:
    """Faults of values that some message on their way cannot hold."""
    faults = []
    for name, value in options.items():
        said = f"{where}: [options.{policy}] {name}"
        if _has_no_figure(value):
            faults.append(
                f"{said} is {quoted(value)}, and JSON has no such number; if the policy takes it, "
                'write it as text, such as "inf"'
            )
            continue
        try:
            msgspec.msgpack.encode(value)
        except (OverflowError, TypeError, ValueError) as error:
            faults.append(
                f"{said} cannot be passed on: {error}; whole numbers have 64 bits, or are text"
            )
    return faults


def _has_no_figure(value: Any) -> bool:
    """Whether an infinite number is in it, or one that is none."""
    if isinstance(value, dict):
        return any(map(_has_no_figure, value.values()))
    if isinstance(value, list):
        return any(map(_has_no_figure, value))
    return isinstance(value, float) and not math.isfinite(value)


def _table(layer: _Layer, where: str, content: Mapping[str, Any], key: str) -> dict[str, Any]:
    table = content.get(key, {})
    if isinstance(table, dict):
        return table
    layer.faults.append(f"{where}: [{key}] must be a table")
    return {}
