"""Views made by hand are what the scheduler would give."""

from __future__ import annotations

import random
from dataclasses import fields

import numpy as np
import pytest

from cadenza.policies import RequestColumns, StepView
from cadenza.policies.contract import ARGUMENTS
from cadenza.testing import (
    Driver,
    ManualClock,
    preemption_costs,
    random_requests,
    request_columns,
    running_columns,
    step_view,
)
from cadenza.testing.scenes import random_scene
from cadenza.testing.tables import COLUMNS


def views() -> list[RequestColumns]:
    rng = random.Random(1)
    return [
        request_columns(0),
        request_columns(3),
        running_columns(2, prompt_tokens=[5, 50]),
        random_requests(20, rng),
        random_requests(20, rng, running=True),
    ]


@pytest.mark.parametrize("index", range(len(views())))
def test_every_column_can_be_read_and_has_the_type_that_the_scheduler_gives_it(index: int):
    driver = Driver()
    driver.add(0, [1, 2])
    real = driver.scheduler._stores.table.view(np.array([0]))
    made = views()[index]

    for name in COLUMNS:
        assert getattr(made, name).dtype == getattr(real, name).dtype, name
        assert getattr(made, name).shape == (len(made),), name


def test_a_request_that_has_just_arrived_is_as_the_scheduler_sees_it():
    driver = Driver()
    driver.add(0, list(range(10)), max_tokens=50)
    real = driver.scheduler._stores.table.view(np.array([0]))
    made = request_columns(1, max_tokens=50, next_block_key=real.next_block_key)

    for name in COLUMNS:
        assert getattr(made, name).tolist() == getattr(real, name).tolist(), name


def test_one_value_is_for_all_and_what_follows_need_not_be_given():
    made = request_columns(prompt_tokens=[3, 4], generated_tokens=2, arrival_s=[7.0, 8.0])

    assert made.num_tokens.tolist() == [5, 6]
    assert made.waits_since_s.tolist() == made.last_run_s.tolist() == [7.0, 8.0]
    assert made.request.tolist() == made.arrival.tolist() == [0, 1]
    assert made.remaining_prefill.tolist() == [5, 6]


def test_running_requests_hold_what_they_have_computed():
    made = running_columns(prompt_tokens=[16, 17], generated_tokens=1)

    assert made.computed_tokens.tolist() == [16, 17]
    assert made.blocks_held.tolist() == [1, 2]
    assert made.admission.tolist() == [0, 1]
    assert made.remaining_prefill.tolist() == [1, 1]


def test_what_is_left_to_prefill_may_be_said_outright():
    assert request_columns(remaining_prefill=[4, 10]).remaining_prefill.tolist() == [4, 10]
    with pytest.raises(ValueError, match=r"remaining_prefill \[11\] contradicts .*leave \[10\]"):
        request_columns(remaining_prefill=[11])


def test_what_is_wrong_with_columns_is_said():
    with pytest.raises(ValueError, match=r"no column 'priorty' \(did you mean 'priority'\?\)"):
        request_columns(priorty=[1])
    with pytest.raises(ValueError, match="tenant has 2 elements, and there are 3 requests"):
        request_columns(tenant=[1, 2], priority=[1, 2, 3])
    with pytest.raises(ValueError, match="priority must be int64, and is float64"):
        request_columns(priority=[0.5])


def test_a_step_has_every_field_and_no_other():
    step = step_view(now_s=3.0, total_blocks=7)

    assert {each.name for each in fields(StepView)} == {*StepView.__slots__}
    assert (step.now_s, step.free_blocks, step.total_blocks) == (3.0, 7, 7)
    with pytest.raises(ValueError, match=r"no field of StepView 'now' .*'now_s'"):
        step_view(now=1.0)


def test_costs_are_of_these_victims():
    costs = preemption_costs(running_columns(3), free_host_blocks=5)

    assert len(costs.recompute_s) == len(costs.swap_s) == 3
    assert np.isinf(preemption_costs(running_columns(3)).swap_s).all()


def test_the_same_seed_makes_the_same_requests():
    one, other = (random_requests(30, random.Random(4), first=9) for _ in range(2))

    for name in COLUMNS:
        assert np.array_equal(getattr(one, name), getattr(other, name)), name
    assert one.request.tolist() == list(range(9, 39))


def test_a_manual_clock_goes_only_where_it_is_told_to():
    clock = ManualClock(5.0)

    assert (clock(), clock.advance(0.5), clock()) == (5.0, 5.5, 5.5)
    with pytest.raises(ValueError, match=r"cannot advance by -1"):
        clock.advance(-1)


def test_a_driver_goes_by_the_clock_that_it_is_given():
    clock = ManualClock(40.0)
    driver = Driver(clock=clock)
    driver.add(0, [1], max_tokens=1)
    driver.run()

    assert driver.now_s == clock.now_s == pytest.approx(40.02)


def test_scenes_have_arguments_for_every_hook():
    asked = {hook for hook, _ in random_scene(4, seed=0).calls(tuple(ARGUMENTS))}

    assert asked == {*ARGUMENTS}
