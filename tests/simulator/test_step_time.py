"""The model of a step's time, term by term."""

from __future__ import annotations

import numpy as np
import pytest

from cadenza.simulator.errors import SimulatorError
from cadenza.simulator.step_time import StepTime, step_time_of, work_of

MODEL = StepTime(
    fixed_s=10,
    knee=100,
    token_s=1,
    decode_s=0.5,
    context_s=0.01,
    attention_s=0.001,
    prefill_context_s=0.1,
    mixed_s=3,
    mixed_context_s=0.02,
)


def seconds(new: list[int], context: list[int]) -> float:
    return MODEL.seconds(work_of(np.array(new), np.array(context)))


def test_decodes_alone():
    assert seconds([1, 1], [50, 70]) == pytest.approx(10 + 2 * 0.5 + 120 * 0.01)


def test_tokens_below_the_knee_are_free_and_the_others_not():
    work = 0.001 * 100 * (0 + 50)

    assert seconds([100], [0]) == pytest.approx(10 + work)
    assert seconds([130], [0]) == pytest.approx(10 + 30 + 0.001 * 130 * 65)


def test_a_chunk_reads_what_came_before_it():
    assert seconds([10], [40]) == pytest.approx(10 + 0.001 * 10 * (40 + 5) + 0.1 * 40)


def test_a_mixed_step_costs_more_than_its_parts():
    parts = 10 + 0.5 + 0.01 * 60 + 0.001 * 10 * (40 + 5) + 0.1 * 40

    assert seconds([1, 10], [60, 40]) == pytest.approx(parts + 3 + 0.02 * 60)


def test_a_scaled_model_keeps_its_knee():
    scaled = MODEL.scaled(2)

    assert scaled.knee == MODEL.knee
    assert scaled.fixed_s == 2 * MODEL.fixed_s


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), "1", None, True])
def test_a_coefficient_must_be_a_number_from_0(value: object):
    with pytest.raises(SimulatorError, match="token_s must be a number from 0"):
        step_time_of({"fixed_s": 1, "token_s": value})


def test_an_unknown_coefficient_is_told_with_the_nearest():
    with pytest.raises(SimulatorError, match="did you mean 'token_s'"):
        step_time_of({"tokens_s": 1})


def test_a_step_must_take_time():
    with pytest.raises(SimulatorError, match="takes no time"):
        StepTime(context_s=1)
