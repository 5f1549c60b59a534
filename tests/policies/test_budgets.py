"""How many tokens a step may have: the checked answer, and the policies that come along."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cadenza.policies import RequestColumns, StepBudget, StepView, hookimpl
from cadenza.policies.builtin import BUILTIN, Calibrated, TpotTarget
from cadenza.policies.decisions import Decisions
from cadenza.policies.errors import ProfileError
from cadenza.policies.profile import Profile
from cadenza.scheduler.costs import CostModel
from cadenza.testing import Driver, oracle
from tests.policies.views import NOBODY, STEP, whole

TOKEN = 2.0**-10  # seconds; a power of two, so that sums are exact
MEASURED = replace(
    STEP, token_budget=4096, token_s=TOKEN, context_s=TOKEN / 128, fixed_s=100 * TOKEN
)


class Loose(StepBudget):
    """Not quite a budget."""


class Whole(np.int64):
    """Not quite a number: the core would compare it."""

    def __lt__(self, other: Any) -> Any:
        return False


def decisions_with(answer: Any) -> Decisions:
    class Policy:
        @hookimpl
        def plan_budget(
            self, running: RequestColumns, waiting: RequestColumns, step: StepView
        ) -> Any:
            return answer

    return Decisions(Profile({"plan_budget": "mine"}, {**BUILTIN, "mine": Policy}))


@pytest.mark.parametrize(
    ("answer", "budget"),
    [
        (StepBudget(1), StepBudget(1)),
        (StepBudget(64, 64), StepBudget(64, 64)),
        (StepBudget(65), StepBudget(64)),
        (StepBudget(10**30, 10**30), StepBudget(64, 64)),
        (StepBudget(np.int32(7), np.int64(3)), StepBudget(7, 3)),
        (None, StepBudget(64)),
    ],
    ids=repr,
)
def test_a_budget_is_at_most_what_is_configured(answer: Any, budget: StepBudget):
    decisions = decisions_with(answer)

    assert decisions.plan_budget(NOBODY, NOBODY, STEP) == budget
    assert decisions.faults == 0


@pytest.mark.parametrize(
    "answer",
    [
        StepBudget(0),
        StepBudget(-3),
        StepBudget(8, 0),
        StepBudget(8.0),
        StepBudget(True),
        StepBudget(np.nan),
        StepBudget(Whole(-8)),
        StepBudget(8, Whole(-8)),
        StepBudget(8, "8"),
        Loose(8),
        8,
        (8, None),
        np.array([8]),
    ],
    ids=repr,
)
def test_what_is_no_budget_costs_the_policy_the_decision(answer: Any):
    decisions = decisions_with(answer)

    assert decisions.plan_budget(NOBODY, NOBODY, STEP) == StepBudget(64)
    assert decisions.faults == 1


def test_the_default_is_what_is_configured_and_need_not_be_asked():
    assert Calibrated().plan_budget(NOBODY, NOBODY, STEP) == StepBudget(64)
    assert not Decisions(Profile()).plans_budget
    assert Decisions(Profile({"plan_budget": "tpot-target"})).plans_budget


def budget_of(running: RequestColumns, step: StepView = MEASURED, **options: Any) -> Any:
    policy = TpotTarget(TpotTarget.Options(**options))
    return policy.plan_budget(running, NOBODY, step)


def decoding(**columns: list[Any]) -> RequestColumns:
    """Two that have computed 1,280 tokens each, all but the last one."""
    return whole(**{"prompt_tokens": [1281, 1281], "computed_tokens": [1280, 1280], **columns})


@pytest.mark.parametrize(
    ("targets", "tokens"),
    [
        ([300, np.inf], 180),  # less 100 for the step itself, and 20 for what is read
        ([300, 200], 80),
        ([9000, 9000], 4096),
        ([1, 1], 2 + 64),  # too strict: prefills end in any case
    ],
)
def test_a_step_ends_in_time_for_the_strictest_target(targets: list[float], tokens: int):
    running = decoding(tpot_target_s=[each * TOKEN for each in targets])

    assert budget_of(running) == StepBudget(tokens)


def test_only_those_who_decode_have_a_target():
    targets = [200 * TOKEN, 300 * TOKEN]

    prefills = decoding(tpot_target_s=targets, computed_tokens=[500, 1280])
    assert budget_of(prefills) == StepBudget(190)
    parked = decoding(tpot_target_s=targets, parked=[True, False])
    assert budget_of(parked) == StepBudget(190)
    assert budget_of(decoding(tpot_target_s=targets, computed_tokens=[9, 9])) is None
    assert budget_of(whole(tpot_target_s=[]), target_s=0.02) is None


def test_nothing_is_limited_without_a_target_or_a_measurement():
    assert budget_of(decoding()) is None
    assert budget_of(decoding(tpot_target_s=[0.02, 0.02]), STEP) is None
    assert budget_of(decoding(), target_s=300 * TOKEN) == StepBudget(180)
    stricter = decoding(tpot_target_s=[200 * TOKEN, 9.0])
    assert budget_of(stricter, target_s=300 * TOKEN) == StepBudget(80)
    assert budget_of(decoding(), target_s=0.001, least_prefill=5) == StepBudget(7)


@pytest.mark.parametrize(
    "options", [{"target_s": 0.0001}, {"target_s": "nan"}, {"least_prefill": 0}]
)
def test_options_that_mean_nothing_are_refused(options: dict[str, Any]):
    with pytest.raises(ProfileError, match="refuses its options"):
        Profile({"plan_budget": "tpot-target"}, options={"tpot-target": options})


def test_a_long_prompt_is_cut_smaller_while_somebody_decodes_with_a_target():
    """A token is known to take an eighth of a second."""
    options = {"tpot-target": {"least_prefill": 2}}
    driver = Driver(
        Profile({"plan_budget": "tpot-target"}, options=options),
        costs=CostModel(token_s=0.125),
        max_num_batched_tokens=32,
        num_blocks=64,
    )
    driver.add(0, [1, 2], max_tokens=6, tpot_target_s=2.5, ignore_eos=True)
    for _ in range(2):
        driver.step()
    driver.add(1, [3] * 50, max_tokens=2)
    chunks = []
    for _ in range(3):
        driver.step()
        chunks.append(driver.plan.num_new.tolist())

    assert chunks == [[1, 19], [1, 19], [1, 12]]
    driver.run()
    assert driver.tokens == {0: oracle([1, 2], 6), 1: oracle([3] * 50, 2)}
