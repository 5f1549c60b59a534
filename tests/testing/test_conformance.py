"""The kit is worth something only if policies that break the contract fail it."""

from __future__ import annotations

from typing import Any

import pytest

from cadenza.policies import StepView, hookimpl, per_request
from cadenza.testing import Failure, PolicyConformance
from tests.testing import bad_policies

TAKES = "test_a_profile_takes_it"
ANSWERS = "test_answers_can_be_used"
FOLLOWS = "test_answers_follow_from_the_questions"
HASHES = "test_answers_do_not_depend_on_the_hash_seed"
CLOCKS = "test_hooks_do_not_ask_for_the_time_or_sleep"
VIEWS = "test_views_are_left_alone"
COST = "test_the_cost_is_bounded"
SERVES = "test_it_serves_in_a_scheduler"
STARVES = "test_nobody_starves"
FORGETS = "test_it_forgets_who_is_gone"

HANGS = "did not come to an end"

# Which check is meant for which policy, and what it says
MEANT: dict[str, tuple[str, str]] = {
    "AnswersNan": (ANSWERS, r"order_admissions\(\d+ waiting\).*NaN.*request \d+ \(index"),
    "AnswersOneTooMany": (ANSWERS, r"expected shape \(0,\), got \(1,\)"),
    "AnswersAList": (ANSWERS, "expected a NumPy array of booleans, got list"),
    "FailsForNobody": (ANSWERS, r"order_admissions\(0 waiting\): ValueError"),
    "WritesToAColumn": (VIEWS, "read-only.*change a copy"),
    "WritesBehindTheView": (VIEWS, "changes priority of `waiting`"),
    "KeepsTheView": (VIEWS, "keeps `waiting` after it has returned"),
    "Shuffles": (FOLLOWS, r"answered differently in step 1: 0\.\d+ and 0\.\d+; request 1 "),
    "GoesByHash": (HASHES, "PYTHONHASHSEED"),
    "ReadsAClock": (CLOCKS, r"calls time\.monotonic\(\)"),
    "ReadsTheDate": (CLOCKS, r"calls datetime\.now\(\)"),
    "WaitsForAnEvent": (ANSWERS, r"did not come to an end within 0\.02 s"),
    "Sleeps": (CLOCKS, r"calls time\.sleep\(\)"),
    "ComparesAllPairs": (COST, "more than 60000 lines of Python in a call for 1000 requests"),
    "ComparesAFew": (COST, r"\d+ lines of Python for 1000 requests and \d+ for 4000: more than n"),
    "ComparesInAMatrix": (COST, "bytes of memory for 1000 requests and .* for 4000: more than n"),
    "Hangs": (ANSWERS, r"did not come to an end within 0\.02 s"),
    "PrefersATenant": (STARVES, "overtakes_within_tenant = True.* is for orders that are fair"),
    "Remembers": (FORGETS, r"1\.00 more for each; forget requests"),
    "WaitsForTheEnd": (FORGETS, r"0\.10 more for each; forget requests"),
    "FailsLater": (SERVES, r"on_admitted, in a scheduler .*entered twice"),
    "ExpectsToKnowThem": (SERVES, r"on_finished, in a scheduler .*KeyError"),
    "SharesWithItsTwin": (ANSWERS, r"shed_load\(1 waiting\): AttributeError"),
    "ForgetsItsDefault": (TAKES, "needs the option weight, of type float"),
}


def conformance_of(name: str, **attributes: Any) -> PolicyConformance:
    attributes = {"policy": getattr(bad_policies, name), **attributes}
    return type(name, (PolicyConformance,), attributes)()


@pytest.mark.parametrize("name", MEANT)
def test_a_bad_policy_fails_the_check_that_is_meant_for_it(name: str):
    check, message = MEANT[name]
    conformance = conformance_of(name, **({"patience_s": 0.02} if HANGS in message else {}))

    with pytest.raises(Failure, match=message):
        getattr(conformance, check)()


def test_every_check_fails_some_policy():
    checks = {name for name in vars(PolicyConformance) if name.startswith("test_")}

    assert {check for check, _ in MEANT.values()} == checks


@pytest.mark.parametrize(
    ("name", "check", "cause"),
    [("FailsForNobody", ANSWERS, ValueError), ("FailsLater", SERVES, RuntimeError)],
)
def test_what_a_hook_raised_is_the_cause(name: str, check: str, cause: type[Exception]):
    with pytest.raises(Failure) as info:
        getattr(conformance_of(name), check)()

    assert isinstance(info.value.__cause__, cause)


class OneByOne:
    """In plain Python for each request, as far as that is allowed."""

    name = "one-by-one"

    @hookimpl
    @per_request
    def order_admissions(self, request: Any) -> float:
        return float(request.prompt_tokens)

    @hookimpl
    @per_request
    def select_victims(self, request: Any, step: StepView) -> float:
        return step.now_s - request.arrival_s


class TestOneByOne(PolicyConformance):
    policy = OneByOne
