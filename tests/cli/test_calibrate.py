"""`cadenza calibrate`: from a log to a machine that `cadenza simulate` takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cadenza.cli.main import main
from cadenza.simulator.machines import machine_of
from tests.simulator.test_fitting import HEAD, TRUE, steps, written


def status_of(*arguments: str) -> int:
    with pytest.raises(SystemExit) as left:
        main(["calibrate", *arguments])
    return int(left.value.code or 0)


def test_it_writes_a_machine_and_tells_how_good_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    output = tmp_path / "machine.json"

    assert status_of(str(written(tmp_path, HEAD, *steps(100))), "--output", str(output)) == 0

    assert machine_of(str(output)).step_time.token_s == pytest.approx(TRUE.token_s, rel=1e-3)
    assert json.loads(output.read_text())["limits"]["num_blocks"] == 10
    told = capsys.readouterr().out
    assert "100 steps, 0 of them left out" in told
    assert "token_s" in told


@pytest.mark.parametrize(
    ("output", "said"),
    [("machine.json", "missing cannot be read"), ("/nowhere/m.json", "cannot be read")],
)
def test_a_log_that_is_not_there_is_told(
    capsys: pytest.CaptureFixture[str], output: str, said: str
):
    assert status_of("missing", "--output", output) == 2
    assert said in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    log = written(tmp_path, HEAD, *steps(30))

    assert status_of(str(log), "--output", "/nowhere/m.json") == 2
    assert "/nowhere/m.json cannot be written" in capsys.readouterr().err
