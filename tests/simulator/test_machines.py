"""Machines by name, by file, and by their peaks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cadenza.simulator.errors import SimulatorError
from cadenza.simulator.machines import MACHINES, machine_of, roofline
from cadenza.simulator.step_time import Work


@pytest.mark.parametrize("name", MACHINES)
def test_a_known_machine_says_where_it_is_from(name: str):
    machine = machine_of(name)

    assert machine.source
    assert 0.001 < machine.step_time.seconds(Work(1, 1, 100, 0, 0)) < 0.1


@pytest.mark.parametrize("name", MACHINES)
def test_a_machine_survives_its_file(name: str, tmp_path: Path):
    path = tmp_path / "machine.json"
    path.write_text(json.dumps(MACHINES[name].encoded()))

    assert machine_of(str(path)) == MACHINES[name]


def test_a_roofline_goes_by_weights_and_peak():
    machine = roofline("h100", params=8e9)
    time = machine.step_time

    assert time.fixed_s == pytest.approx(16e9 / (0.8 * 3.35e12))
    assert time.token_s == pytest.approx(16e9 / (989e12 * 0.45))
    assert time.knee == int(time.fixed_s / time.token_s)
    assert "estimate" in machine.source


def test_two_gpus_halve_it():
    one, two = (roofline("a100", params=8e9, gpus=gpus).step_time for gpus in (1, 2))

    assert two.fixed_s == one.fixed_s / 2
    assert two.token_s == one.token_s / 2


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("rtx-4090-llama", "did you mean 'rtx-4090-llama-3.1-8b'"),
        ("roofline:h200", "there is no device 'h200'"),
        ("roofline:h100,parms=1", "did you mean 'params'"),
        ("roofline:h100,params=x", "NAME=NUMBER"),
        ("roofline:h100,params=-1", "params must be above 0"),
        ("missing.json", "cannot be read"),
    ],
)
def test_what_is_no_machine_is_told(name: str, said: str):
    with pytest.raises(SimulatorError, match=said):
        machine_of(name)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "no JSON"),
        ("[]", "describes no machine"),
        ('{"format": "cadenza-machine", "version": 9}', "version 9"),
        ('{"format": "cadenza-machine", "version": 1}', "no step_time"),
        ('{"format": "cadenza-machine", "version": 1, "step_time": {"fixed": 1}}', "fixed_s"),
        (
            '{"format": "cadenza-machine", "version": 1, "step_time": {"fixed_s": 1},'
            ' "limits": {"num_blocks": "2"}}',
            "num_blocks must be a whole number",
        ),
        (
            '{"format": "cadenza-machine", "version": 1, "step_time": {"fixed_s": 1},'
            ' "copy_token_s": -1}',
            "copy_token_s must be from 0",
        ),
    ],
)
def test_what_is_wrong_with_a_file_is_told(tmp_path: Path, content: str, said: str):
    path = tmp_path / "machine.json"
    path.write_text(content)

    with pytest.raises(SimulatorError, match=said):
        machine_of(str(path))
