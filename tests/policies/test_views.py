"""What a hook does to its views changes nothing for whoever is asked next, nor for the core."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from cadenza.policies import PreemptionCosts, RequestColumns, StepView, hookimpl
from cadenza.policies.builtin import BUILTIN
from cadenza.policies.decisions import Decisions
from cadenza.policies.profile import Profile
from tests.policies.views import STEP, columns


def write(array: Any) -> None:
    array[:] = 0


def sort(array: Any) -> None:
    array[::-1].sort()


def set_the_flag(array: Any) -> None:
    array.flags.writeable = True
    array[:] = 0


def write_to_a_view(array: Any) -> None:
    set_the_flag(array.view())


def write_to_what_owns_the_memory(array: Any) -> None:
    owner = array
    while (below := getattr(owner, "obj", getattr(owner, "base", None))) is not None:
        owner = below
    set_the_flag(owner)


def write_to_the_memory(array: Any) -> None:
    memoryview(array.base).cast("B")[0] = 1


WAYS = [
    write,
    sort,
    set_the_flag,
    write_to_a_view,
    write_to_what_owns_the_memory,
    write_to_the_memory,
]


class Vandal:
    """Does something to all arrays that the defaults look at, then leaves the decision to them."""

    def __init__(self, way: Callable[[Any], None], *, quiet: bool = False) -> None:
        self._way = way
        self._errors = (Exception,) if quiet else ()

    def __call__(self) -> "Vandal":
        return self

    def _at(self, *arrays: Any) -> None:
        for array in arrays:
            with suppress(*self._errors):
                self._way(array)

    @hookimpl
    def order_admissions(self, waiting: RequestColumns, step: StepView) -> None:
        self._at(waiting.arrival)

    @hookimpl
    def guard_starvation(self, waiting: RequestColumns, step: StepView) -> None:
        self._at(waiting.overtakes)

    @hookimpl
    def reserve_blocks(
        self, running: RequestColumns, candidates: RequestColumns, step: StepView
    ) -> None:
        for each in (running, candidates):
            self._at(each.generated_tokens, each.max_tokens, each.choices)

    @hookimpl
    def select_victims(self, running: RequestColumns, step: StepView) -> None:
        self._at(running.admission)

    @hookimpl
    def choose_preemption(
        self, victims: RequestColumns, costs: PreemptionCosts, step: StepView
    ) -> None:
        self._at(costs.swap_s, costs.recompute_s, costs.swap_blocks, costs.recompute_tokens)


ROWS = {
    "arrival": [10, 11],
    "overtakes": [64, 0],
    "admission": [1, 2],
    "generated_tokens": [1, 0],
    "max_tokens": [10, 9],
}


def costs() -> PreemptionCosts:
    return PreemptionCosts(
        recompute_tokens=np.array([8, 8]),
        recompute_s=np.array([9.0, 0.5]),
        swap_blocks=np.array([2, 1]),
        swap_s=np.array([1.0, 1.0]),
        free_host_blocks=4,
    )


HOOKS: dict[str, Callable[[Decisions], np.ndarray]] = {
    "order_admissions": lambda asked: asked.order_admissions(columns(**ROWS), STEP),
    "guard_starvation": lambda asked: asked.guard_starvation(columns(**ROWS), STEP),
    "reserve_blocks": lambda asked: asked.reserve_blocks(columns(**ROWS), columns(**ROWS), STEP),
    "select_victims": lambda asked: asked.select_victims(columns(**ROWS), STEP),
    "choose_preemption": lambda asked: asked.choose_preemption(columns(**ROWS), costs(), STEP),
}


def decisions_beside(vandal: Any, hook: str) -> Decisions:
    return Decisions(Profile({hook: "vandal"}, {**BUILTIN, "vandal": vandal}))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("hook", HOOKS)
def test_who_writes_to_a_view_is_at_fault_and_the_default_sees_what_was_there(
    hook: str, way: Callable[[Any], None]
):
    decisions = decisions_beside(Vandal(way), hook)

    assert HOOKS[hook](decisions).tolist() == HOOKS[hook](Decisions(Profile())).tolist()
    assert decisions.faults == 1


def set_the_shape(array: Any) -> None:
    array.shape = (-1, 1)


@pytest.mark.parametrize("way", [*WAYS, set_the_shape])
@pytest.mark.parametrize("hook", HOOKS)
def test_no_way_to_spoil_a_view_is_found_by_trying_in_silence(
    hook: str, way: Callable[[Any], None]
):
    decisions = decisions_beside(Vandal(way, quiet=True), hook)

    assert HOOKS[hook](decisions).tolist() == HOOKS[hook](Decisions(Profile())).tolist()
    assert decisions.faults == 0


@pytest.mark.parametrize("way", [*WAYS, set_the_shape])
def test_the_core_keeps_the_costs_that_it_computed(way: Callable[[Any], None]):
    decisions = decisions_beside(Vandal(way, quiet=True), "choose_preemption")
    given = costs()

    decisions.choose_preemption(columns(**ROWS), given, STEP)

    assert given.swap_s.tolist() == costs().swap_s.tolist()
    assert given.recompute_s.tolist() == costs().recompute_s.tolist()
