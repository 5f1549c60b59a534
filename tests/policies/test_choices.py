"""Presets, profile files and flags, and which of them wins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cadenza.policies.builtin import DEFAULTS
from cadenza.policies.choices import _SHORT, DECISIONS, SHORT, choose
from cadenza.policies.presets import PRESETS
from cadenza.policies.profile import OBSERVER, Profile


def written(folder: Path, text: str) -> Path:
    file = folder / "profile.toml"
    file.write_text(text)
    return file


def test_every_hook_has_a_name_for_flags():
    assert {*DECISIONS.values()} == {*DEFAULTS, OBSERVER}
    assert {*_SHORT.values()} <= {*DEFAULTS}
    assert SHORT["order_admissions"] == "order"


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_can_be_built(preset: str):
    choices = choose(preset)

    assert not choices.faults
    profile = Profile(choices.chosen, options=choices.options)
    for decision, policy in PRESETS[preset].decisions.items():
        assert profile.names[DECISIONS[decision]] == policy
    assert PRESETS[preset].summary


def test_without_anything_the_defaults_decide():
    assert choose().chosen == {}
    assert Profile(choose("fcfs").chosen).names == DEFAULTS


def test_vllm_like_wants_no_watermark():
    assert choose("vllm-like").watermark == 0.0
    assert choose("priority").watermark is None


@pytest.mark.parametrize(
    ("flags", "chosen", "options"),
    [
        (["order=priority"], {"order_admissions": ("priority",)}, {}),
        (["order_admissions=priority"], {"order_admissions": ("priority",)}, {}),
        (["order=p", "order_admissions=p"], {"order_admissions": ("p",)}, {}),
        (
            ["order=p:a=1,b=x=y", "victims=p:a=1"],
            {"order_admissions": ("p",), "select_victims": ("p",)},
            {"p": {"a": "1", "b": "x=y"}},
        ),
        (["order=p:a="], {"order_admissions": ("p",)}, {"p": {"a": ""}}),
        (["guard=a", "guard=b:x=1"], {"guard_starvation": ("a", "b")}, {"b": {"x": "1"}}),
        (["observer=a", "observer=b"], {"observer": ("a", "b")}, {}),
    ],
)
def test_flags(flags: list[str], chosen: dict[str, Any], options: dict[str, Any]):
    choices = choose(flags=flags)

    assert not choices.faults
    assert choices.chosen == chosen
    assert choices.options == options


FILE = """
preset = "priority"

[decisions]
order = "p"
guard = ["a", "b"]

[options.p]
depth = 3
weights = { x = 1.5 }
"""


def test_a_file_has_the_same_and_values_of_any_type(tmp_path: Path):
    choices = choose(file=written(tmp_path, FILE))

    assert not choices.faults
    assert choices.chosen == {
        "order_admissions": ("p",),
        "allow_displacement": ("strict-priority",),
        "select_victims": ("lowest-priority",),
        "guard_starvation": ("a", "b"),
    }
    assert choices.options == {"p": {"depth": 3, "weights": {"x": 1.5}}}


def test_flags_win_over_the_file_and_the_file_over_the_preset(tmp_path: Path):
    file = written(tmp_path, FILE)

    assert choose("vllm-like", file).chosen["reserve_blocks"] == ("none",)
    assert choose("vllm-like", file).chosen["order_admissions"] == ("p",)
    assert choose(None, file, ["guard=c"]).chosen["guard_starvation"] == ("c",)
    assert choose(None, file, ["order=p:depth=4"]).options["p"]["depth"] == "4"
    assert choose(None, file, ["order=p:depth=4"]).options["p"]["weights"] == {"x": 1.5}


def test_options_go_with_the_policy_that_another_layer_takes_out(tmp_path: Path):
    assert choose(None, written(tmp_path, FILE), ["order=fcfs"]).options == {}


def test_options_of_a_policy_that_nobody_named_stay_to_be_refused(tmp_path: Path):
    file = written(tmp_path, "[options.pp]\ndepth = 1\n")

    assert choose(file=file).options == {"pp": {"depth": 1}}


@pytest.mark.parametrize(
    ("flags", "fault"),
    [
        (["ordr=p"], "--policy ordr=p: there is no decision 'ordr' (did you mean 'order'?)"),
        (["order"], "--policy order is not of the form DECISION=POLICY"),
        (["order=p:a"], "--policy order=p:a is not of the form DECISION=POLICY"),
        (
            ["order=p,a=1,b=2"],
            "--policy order=p,a=1,b=2: options follow a ':', as in --policy order=p:a=1,b=2",
        ),
        (
            ["gate=p,q"],
            "--policy gate=p,q: each policy has a flag of its own, as in --policy gate=",
        ),
        (["order=p:=1"], "--policy order=p:=1 is not of the form DECISION=POLICY"),
        (["order=a", "order=b"], "--policy order=b: order is decided by one policy, not by a, b"),
        (
            ["order=p:a=1", "victims=p:a=2"],
            "--policy victims=p:a=2: p has a=1 already; a policy is built once",
        ),
    ],
)
def test_wrong_flags_are_told(flags: list[str], fault: str):
    (told,) = choose(flags=flags).faults

    assert told.startswith(fault)


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("preset =", ["cannot be read: "]),
        ("preset = " + "[" * 2000 + "]" * 2000, ["cannot be read: it is nested too deeply"]),
        ("preset = 3", ["preset must be a name, and is 3"]),
        ("preset = 'fcsf'", ["there is no preset 'fcsf' (did you mean 'fcfs'?)"]),
        ("decision = {}", ["there is no key 'decision' (did you mean 'decisions'?)"]),
        ("decisions = 3\noptions = 4", ["[decisions] must be a table", "[options] must be"]),
        ("[decisions]\norder = 3\nvictms = 'a'", ["order must be a name", "(did you mean 'vic"]),
        ("[decisions]\norder = ['a', 'b']", ["order is decided by one policy, not by a, b"]),
        ("[options]\np = 3", ["[options.p] must be a table"]),
        (f"[options.p]\na = {1 << 70}", ["[options.p] a cannot be passed on: "]),
        ("[options.p]\na = inf", ["[options.p] a is inf, and JSON has no such number"]),
        ("[options.p]\na = -inf", ["[options.p] a is -inf, and JSON has no such number"]),
        ("[options.p]\na = [1, {b = nan}]", ["[options.p] a is [1, {'b': nan}]"]),
    ],
)
def test_a_wrong_file_is_told(tmp_path: Path, text: str, faults: list[str]):
    told = choose(file=written(tmp_path, text)).faults

    assert len(told) == len(faults)
    for fault, part in zip(sorted(told), sorted(faults), strict=True):
        assert part in fault or any(part in each for each in told)


def test_faults_of_all_layers_are_told(tmp_path: Path):
    file = written(tmp_path, "[decisions]\nx = 'y'\n")

    assert len(choose("nothing", file, ["order"]).faults) == 3
