"""The kit asks the hooks of the front process too, and finds what is wrong with their policies."""

from __future__ import annotations

import random
import time
from typing import Any

import numpy as np
import pytest

from cadenza.policies import ArrivalColumns, Refusal, ServiceView, hookimpl
from cadenza.policies.contract import FRONT_HOOKS
from cadenza.testing import Failure, PolicyConformance
from cadenza.testing.scenes import random_scene


def conform(policy: type, check: str) -> None:
    conformance = type("Conformance", (PolicyConformance,), {"policy": policy})()
    getattr(conformance, check)()


def test_nobody_is_asked_about_no_arrival():
    assert [hook for hook, _ in random_scene(0, seed=1).calls(FRONT_HOOKS)] == []


class TooFew:
    name = "too-few"

    @hookimpl
    def gate_arrivals(self, arrivals: ArrivalColumns) -> list[None]:
        return [None] * (len(arrivals) - 1)


class NotANumber:
    name = "not-a-number"

    @hookimpl
    def shed_load(self, waiting: ArrivalColumns) -> np.ndarray:
        scores = np.zeros(len(waiting))
        scores[-1] = np.nan
        return scores


class Clock:
    name = "clock"

    @hookimpl
    def shed_load(self, waiting: ArrivalColumns) -> np.ndarray:
        return time.monotonic() - waiting.arrival_s


class Chance:
    name = "chance"

    @hookimpl
    def gate_arrivals(self, arrivals: ArrivalColumns) -> list[Refusal | None]:
        refusal = Refusal(reason=f"You lost: {random.random()}.", limit="service")
        return [refusal] * len(arrivals)


class Writes:
    name = "writes"

    @hookimpl
    def shed_load(self, waiting: ArrivalColumns) -> np.ndarray:
        waiting.priority[0] = 0
        return np.zeros(len(waiting))


class Keeps:
    name = "keeps"

    @hookimpl
    def gate_arrivals(self, arrivals: ArrivalColumns, service: ServiceView) -> None:
        self.last = arrivals


class Quadratic:
    name = "quadratic"

    @hookimpl
    def shed_load(self, waiting: ArrivalColumns) -> np.ndarray:
        values = waiting.priority.tolist()
        return np.array([float(sum(1 for b in values if b > a)) for a in values])


class Hoards:
    name = "hoards"

    def __init__(self) -> None:
        self.seen: list[int] = []

    @hookimpl
    def gate_arrivals(self, arrivals: ArrivalColumns) -> None:
        self.seen += arrivals.prompt_tokens.tolist()


WRONG: list[tuple[Any, str, str]] = [
    (TooFew, "test_answers_can_be_used", r"gate_arrivals\(1 arrivals\): .*expected 1 refusals"),
    (
        NotANumber,
        "test_answers_can_be_used",
        r"shed_load\(1 waiting\): .*; index 0 of 1",
    ),
    (Clock, "test_hooks_do_not_ask_for_the_time_or_sleep", r"shed_load calls time.monotonic"),
    (Chance, "test_answers_follow_from_the_questions", "gate_arrivals: two fresh instances"),
    (Writes, "test_views_are_left_alone", "read-only"),
    (Keeps, "test_views_are_left_alone", "gate_arrivals keeps `arrivals`"),
    (Quadratic, "test_the_cost_is_bounded", "shed_load executes more than"),
    (Hoards, "test_it_forgets_who_is_gone", "an instance held"),
]


@pytest.mark.parametrize(
    ("policy", "check", "said"), WRONG, ids=[policy.name for policy, _, _ in WRONG]
)
def test_a_wrong_policy_of_the_front_is_found(policy: type, check: str, said: str):
    with pytest.raises(Failure, match=said):
        conform(policy, check)


def test_a_right_one_passes_every_check():
    class Right:
        name = "right"

        @hookimpl
        def gate_arrivals(self, arrivals: ArrivalColumns, service: ServiceView) -> Any:
            refusal = Refusal(reason="No.", limit="tenant")
            return [refusal if choices > 1 else None for choices in arrivals.choices.tolist()]

        @hookimpl
        def shed_load(self, waiting: ArrivalColumns, service: ServiceView) -> np.ndarray:
            return service.now_s - waiting.arrival_s

    for check in ("test_answers_can_be_used", "test_views_are_left_alone"):
        conform(Right, check)
