"""Steps as they are logged, and that the engine goes on if they cannot be."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from cadenza.engine import step_log
from cadenza.engine.step_log import LoggedRunner
from cadenza.simulator.fitting import read_log
from cadenza.testing import Driver, FakeRunner, ManualClock
from cadenza.wire.line_file import LineFile


class Ticking(ManualClock):
    """A quarter of a second goes by whenever somebody looks."""

    def __call__(self) -> float:
        return self.advance(0.25)


def logged(path: Path, clock: ManualClock, *, goes_on: bool = False) -> tuple[Driver, LoggedRunner]:
    """A scheduler whose runner is logged."""
    driver = Driver()
    config = driver.scheduler.config
    runner = LoggedRunner(FakeRunner(32, 4), path, config, "cpu", clock, goes_on=goes_on)
    driver.runner = runner
    return driver, runner


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left")


def test_a_step_is_what_it_computes(tmp_path: Path):
    path, clock = tmp_path / "steps", Ticking()
    driver, runner = logged(path, clock)
    driver.add(1, [1] * 10, 3)
    driver.step()
    clock.advance(0.5)
    driver.add(2, [2] * 6, 2)
    driver.run()
    runner.close()

    log = read_log(path)
    assert log.device == "cpu"
    assert log.limits["num_blocks"] == 32
    head, first, second, *_ = [json.loads(line) for line in path.read_text().splitlines()]
    assert head["format"] == "cadenza-steps"
    assert first["prefills"] == [[10, 0]]
    assert (first["decodes"], first["between_s"]) == (0, None)
    assert (second["decodes"], second["contexts"], second["prefills"]) == (1, 10, [[6, 0]])
    # launching and waiting are its own; what is done between them is not
    assert (second["took_s"], second["between_s"]) == (0.5, 1.0)


def test_the_log_ends_before_it_fills_a_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(step_log, "MOST_STEPS", 2)
    driver, _ = logged(tmp_path / "steps", ManualClock())
    driver.add(1, [1] * 4, 5)
    driver.run()

    assert len((tmp_path / "steps").read_text().splitlines()) == 3
    assert len(driver.tokens[1]) == 5


def test_another_engine_goes_on_in_the_log_of_one_that_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(step_log, "MOST_STEPS", 5)
    path = tmp_path / "steps"
    driver, runner = logged(path, Ticking())
    driver.add(1, [1] * 4, 3)
    driver.run()
    runner.close()
    path.write_bytes(path.read_bytes()[:-5])
    driver, _ = logged(path, Ticking(), goes_on=True)
    driver.add(1, [1] * 4, 4)
    driver.run()

    assert len(read_log(path).steps) == 5
    assert path.read_bytes().endswith(b"}\n")
    logged(path, Ticking())[1].close()
    assert len(read_log(path).steps) == 0


def test_a_full_disk_ends_the_log_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    driver, _ = logged(tmp_path / "steps", ManualClock())
    monkeypatch.setattr(LineFile, "write", full)
    with capture_logs() as logs:
        driver.add(1, [1] * 4, 5)
        driver.run()

    assert [log["event"] for log in logs] == ["step log ended"]
    assert len(driver.tokens[1]) == 5
