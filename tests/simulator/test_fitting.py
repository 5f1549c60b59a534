"""A machine is found again from steps that it made, and bad logs are told."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cadenza.simulator.errors import SimulatorError
from cadenza.simulator.fitting import fit, read_log
from cadenza.simulator.machines import MACHINES
from cadenza.simulator.step_time import StepTime, work_of

TRUE = MACHINES["rtx-4090-llama-3.1-8b"].step_time
HEAD = {
    "format": "cadenza-steps",
    "version": 1,
    "device": "test",
    "limits": {"num_blocks": 10, "block_size": 4},
}


def steps(num: int, noise: float = 0.0, model: StepTime = TRUE) -> list[dict[str, Any]]:
    """Of all kinds: decodes, prefills, both, with contexts up to thousands."""
    rng, lines = np.random.default_rng(1), []
    for number in range(num):
        decodes = int(rng.integers(0, 64)) if number % 3 else 0
        contexts = rng.integers(1, 3000, decodes)
        prefills = rng.integers(2, 700, int(rng.integers(0, 3)) if decodes else 1)
        before = rng.integers(0, 2000, len(prefills))
        work = work_of(
            np.concatenate((np.ones(decodes, np.int64), prefills)),
            np.concatenate((contexts, before)),
        )
        lines.append(
            {
                "took_s": model.seconds(work) * (1 + noise * rng.standard_normal()),
                "between_s": 0.001,
                "decodes": decodes,
                "contexts": int(contexts.sum()),
                "prefills": np.stack((prefills, before), axis=1).tolist(),
                "copied_blocks": 2 if number == 5 else 0,
                "copied_s": 0.08 if number == 5 else 0.0,
            }
        )
    return lines


def written(tmp_path: Path, *lines: object) -> Path:
    path = tmp_path / "steps"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_exact_steps_give_the_model_back(tmp_path: Path):
    found = fit(read_log(written(tmp_path, HEAD, *steps(150))), "mine")
    model = found.machine.step_time

    assert found.error < 1e-4
    assert model.knee == TRUE.knee
    assert model.fixed_s == pytest.approx(TRUE.fixed_s + 0.001, rel=1e-3)
    assert model.token_s == pytest.approx(TRUE.token_s, rel=1e-3)
    assert model.context_s == pytest.approx(TRUE.context_s, rel=1e-2)
    assert model.mixed_context_s == pytest.approx(TRUE.mixed_context_s, rel=1e-2)
    assert found.machine.copy_token_s == pytest.approx(0.01)
    assert found.machine.limits == HEAD["limits"]


def test_a_hundred_noisy_steps_predict_others(tmp_path: Path):
    found = fit(read_log(written(tmp_path, HEAD, *steps(100, noise=0.03))), "mine")
    others = read_log(written(tmp_path, HEAD, *steps(300)[100:])).steps
    model = found.machine.step_time

    errors = [model.seconds(step.work) / (step.took_s + 0.001) - 1 for step in others]
    assert np.abs(errors).mean() < 0.04


def test_steps_that_were_held_up_are_left_out(tmp_path: Path):
    lines = steps(120)
    for line in lines[::20]:
        line["took_s"] *= 8
    found = fit(read_log(written(tmp_path, HEAD, *lines)), "mine")

    assert found.num_strays == 6
    assert found.error < 1e-3


def test_steps_that_are_held_up_now_and_then_are_part_of_the_pace(tmp_path: Path):
    lines = steps(120)
    for line in lines[::20]:
        line["took_s"] *= 3
    log = read_log(written(tmp_path, HEAD, *lines))
    found = fit(log, "mine")

    assert found.num_strays == 6
    seconds = sum(found.machine.step_time.seconds(step.work) for step in log.steps)
    took_s = sum(step.took_s for step in log.steps)
    assert seconds == pytest.approx(took_s + 120 * 0.001, rel=1e-3)


def test_an_idle_engine_is_not_a_slow_one(tmp_path: Path):
    lines = steps(100)
    for line in lines[::10]:
        line["between_s"] = 60.0
    lines[0]["between_s"] = None
    found = fit(read_log(written(tmp_path, HEAD, *lines)), "mine")

    assert found.machine.step_time.fixed_s == pytest.approx(TRUE.fixed_s + 0.001, rel=0.01)


def test_half_a_line_at_the_end_is_what_a_killed_engine_leaves(tmp_path: Path):
    path = written(tmp_path, HEAD, *steps(30))
    path.write_text(path.read_text()[:-20])

    assert len(read_log(path).steps) == 29


def test_a_step_that_only_copies_takes_no_time(tmp_path: Path):
    copies = {**steps(1)[0], "took_s": -1e-7, "decodes": 0, "contexts": 0, "prefills": []}
    log = read_log(written(tmp_path, HEAD, copies, *steps(30)))

    assert len(log.steps) == 30


PREFILL = [line for line in steps(90) if line["decodes"] == 0]
DECODES = [{**line, "prefills": []} for line in steps(90) if line["decodes"]]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([], "no step log"),
        ([{"format": "cadenza-requests"}], "no step log: `cadenza serve --record FILE`"),
        ([{**HEAD, "version": 2}], "version 2"),
        ([{**HEAD, "limits": None}], "does not tell the engine's limits"),
        ([HEAD, {"took_s": 1}, *steps(1)], "line 2 is no step"),
        ([HEAD, {**steps(1)[0], "took_s": -1}, *steps(1)], "line 2 is no step"),
        ([HEAD, {**steps(1)[0], "decodes": math.inf}, *steps(1)], "line 2 is no step"),
        ([HEAD, {**steps(1)[0], "decodes": -1}, *steps(1)], "line 2 is no step"),
        ([HEAD, {**steps(1)[0], "contexts": math.nan}, *steps(1)], "line 2 is no step"),
        ([HEAD, {**steps(1)[0], "prefills": [[10**400, 0]]}, *steps(1)], "line 2 is no step"),
        ([HEAD, {**steps(1)[0], "prefills": [[-5, 0]]}, *steps(1)], "line 2 is no step"),
        ([HEAD, {**steps(1)[0], "between_s": math.nan}, *steps(1)], "line 2 is no step"),
        ([HEAD, {**steps(1)[0], "copied_blocks": "x"}, *steps(1)], "line 2 is no step"),
        ([{**HEAD, "limits": {"block_size": 0}}, *steps(30)], "block_size must be a whole numb"),
        ([HEAD, *steps(5)], "has 5 steps with tokens; at least 20"),
        ([HEAD, *PREFILL], "no step with decodes"),
        ([HEAD, *DECODES], "no step with a prefill"),
    ],
)
def test_what_cannot_be_fitted_is_told(tmp_path: Path, lines: list[object], said: str):
    with pytest.raises(SimulatorError, match=said):
        fit(read_log(written(tmp_path, *lines)), "mine")
