"""Steps as they are logged, and that the engine goes on if they cannot be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from cadenza.engine import step_log
from cadenza.engine.step_log import LoggedRunner
from cadenza.simulator.fitting import read_log
from cadenza.testing import Driver, FakeRunner, ManualClock


class Ticking(ManualClock):
    """A quarter of a second goes by whenever somebody looks."""

    def __call__(self) -> float:
        return self.advance(0.25)


def logged(path: Path, clock: ManualClock) -> tuple[Driver, LoggedRunner]:
    """A scheduler whose runner is logged."""
    driver = Driver()
    runner = LoggedRunner(FakeRunner(32, 4), path, driver.scheduler.config, "cpu", clock)
    driver.runner = runner
    return driver, runner


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
    assert (second["took_s"], second["between_s"]) == (0.25, 0.75)


def test_the_log_ends_before_it_fills_a_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(step_log, "MOST_STEPS", 2)
    driver, _ = logged(tmp_path / "steps", ManualClock())
    driver.add(1, [1] * 4, 5)
    driver.run()

    assert len((tmp_path / "steps").read_text().splitlines()) == 3
    assert len(driver.tokens[1]) == 5


def test_a_full_disk_ends_the_log_and_nothing_else():
    with capture_logs() as logs:
        driver, _ = logged(Path("/dev/full"), ManualClock())
        driver.add(1, [1] * 4, 5)
        driver.run()

    assert [log["event"] for log in logs] == ["step log ended"]
    assert len(driver.tokens[1]) == 5
