"""What stays of the front's policies when others take their place."""

from dataclasses import replace
from typing import Any

from cadenza.policies import hookimpl
from cadenza.policies.builtin import BUILTIN
from cadenza.policies.profile import Profile
from cadenza.policies.runner import STRIKES, FaultCount
from cadenza.policies.warm_up import made_up_views
from cadenza.service.front_policies import FrontPolicies

STEP = made_up_views()["step"]


class Failing:
    @hookimpl
    def order_admissions(self) -> Any:
        raise ValueError("no")


POLICIES = {**BUILTIN, "failing": Failing}
CHOSEN = {"order_admissions": "failing"}


def fail(policies: FrontPolicies, times: int) -> None:
    for step_id in range(times):
        arguments = {"waiting": [], "step": replace(STEP, step_id=step_id)}
        policies._runner.ask("failing", "order_admissions", lambda answer: answer, arguments)


def test_a_policy_that_stays_keeps_its_quarantine_and_one_that_leaves_its_count():
    policies = FrontPolicies(Profile(CHOSEN, POLICIES))
    fail(policies, STRIKES)
    assert policies.quarantined == ("failing",)

    more = {**CHOSEN, "select_victims": "lowest-priority"}
    policies.use(Profile(more, POLICIES, before=policies.profile))
    assert policies.quarantined == ("failing",)
    assert policies.faults == (FaultCount("failing", "order_admissions", STRIKES, True),)

    policies.use(Profile({}, POLICIES, before=policies.profile))
    assert policies.quarantined == ()
    assert policies.faults == (FaultCount("failing", "order_admissions", STRIKES, False),)
    assert policies.last_errors == {("failing", "order_admissions"): "ValueError('no')"}
