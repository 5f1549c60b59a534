"""What is allowed for a pass before its end."""

from __future__ import annotations

from cadenza.engine.patience import Patience
from cadenza.scheduler.costs import CostModel
from tests.engine.conftest import Row, make_plan


def test_a_pass_may_take_many_times_as_long_as_expected():
    patience = Patience(CostModel(token_s=0.5), compiles=False)

    assert patience.of(make_plan(Row([1, 2, 3], 3, [0]))) == 10 * 0.5 * 3


def test_first_passes_may_have_to_compile():
    patience = Patience(CostModel(), compiles=True)
    plan = make_plan(Row([1, 2, 3], 3, [0]))
    allowed = [patience.of(plan) for _ in range(40)]

    assert allowed[0] >= 60
    assert allowed[-1] == 0
