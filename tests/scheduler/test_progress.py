"""Whatever policies say, work moves on: no deadlock, no livelock, and nobody is overtaken for ever.

Nobody fails here for want of memory: whatever is admitted fits alone, and the watchdog, which would
fail it, never has to.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest

from cadenza.policies import RequestColumns, StepView, hookimpl
from cadenza.policies.builtin import BUILTIN
from cadenza.policies.builtin.bounded_overtake import MAX_OVERTAKES
from cadenza.policies.profile import Profile
from cadenza.scheduler.decisions import Displaced, Stalled
from cadenza.scheduler.states import FinishReason
from cadenza.testing import Driver, oracle
from tests.scheduler.floods import Flood, overtakers

FLAVOURS = ["recompute", "swap", "cost-model"]
CHOICES = {
    "order_admissions": ["fcfs", "priority"],
    "select_victims": ["newest", "lowest-priority"],
    "reserve_blocks": ["none", "no-evict", "new-token-ratio", "past-future"],
    "choose_preemption": FLAVOURS,
    "allow_displacement": ["nobody", "strict-priority"],
}


class KeepsEverybodyOut:
    name = "keeps-everybody-out"

    @hookimpl
    def order_admissions(self, waiting: RequestColumns, step: StepView) -> np.ndarray:
        return np.full(len(waiting), np.inf)


class NewestFirst:
    name = "newest-first"

    @hookimpl
    def order_admissions(self, waiting: RequestColumns, step: StepView) -> np.ndarray:
        return -waiting.arrival.astype(float)


class KeepsTheOldOut:
    """The newest first, and nobody who waits for more than a step."""

    name = "keeps-the-old-out"

    @hookimpl
    def order_admissions(self, waiting: RequestColumns, step: StepView) -> np.ndarray:
        return np.where(waiting.arrival_s < step.now_s - 0.015, np.inf, -waiting.arrival)


class WantsTheWholePool:
    name = "wants-the-whole-pool"

    @hookimpl
    def reserve_blocks(
        self, running: RequestColumns, candidates: RequestColumns, step: StepView
    ) -> np.ndarray:
        return np.full(len(candidates) + 1, step.total_blocks)


class SparesEverybody:
    name = "spares-everybody"

    @hookimpl
    def select_victims(self, running: RequestColumns, step: StepView) -> np.ndarray:
        return np.full(len(running), np.inf)


class TakesTheOldest:
    name = "takes-the-oldest"

    @hookimpl
    def select_victims(self, running: RequestColumns, step: StepView) -> np.ndarray:
        return running.arrival.astype(float)


class MarksEverybody:
    name = "marks-everybody"

    @hookimpl
    def guard_starvation(self, waiting: RequestColumns, step: StepView) -> np.ndarray:
        return np.ones(len(waiting), dtype=bool)


class DisplacesEverybody:
    name = "displaces-everybody"

    @hookimpl
    def allow_displacement(
        self, candidate: RequestColumns, running: RequestColumns, step: StepView
    ) -> np.ndarray:
        return np.full(len(running), np.inf)


ADVERSARIES: dict[str, type] = {
    policy.name: policy
    for policy in (
        KeepsEverybodyOut,
        NewestFirst,
        KeepsTheOldOut,
        WantsTheWholePool,
        SparesEverybody,
        TakesTheOldest,
        MarksEverybody,
        DisplacesEverybody,
    )
}


def profile_of(**chosen: str) -> Profile:
    return Profile(chosen, BUILTIN | ADVERSARIES)


class Load:
    """Random requests on a tight pool, and what they would get alone."""

    def __init__(self, seed: int, profile: Profile, **limits: object) -> None:
        self.chance = random.Random(seed)
        tight = {"num_blocks": 8, "max_model_len": 32, "max_num_seqs": 4, "num_host_blocks": 6}
        self.driver = Driver(profile, **{**tight, "max_num_batched_tokens": 12, **limits})
        self.wanted: dict[int, list[int]] = {}
        self.most_steps = 0  # if all ran one after another, and each began anew once

    def arrive(self) -> None:
        request = len(self.wanted)
        length, most = self.chance.randint(1, 16), self.chance.randint(1, 16)
        prompt = [self.chance.randint(1, 2) for _ in range(length)]
        self.driver.add(request, prompt, most, priority=self.chance.randint(0, 2))
        self.wanted[request] = oracle(prompt, most)
        chunks = -(-(length + most) // self.driver.scheduler.config.block_size)
        self.most_steps += 2 * (chunks + most)

    def run(self) -> None:
        """To the end: every step computes something, and all get what is theirs."""
        steps = 0
        for _ in range(12):
            self.arrive()
            for _ in range(self.chance.randint(0, 2)):
                self.step()
                steps += 1
        while self.driver.scheduler.has_unfinished:
            self.step()
            steps += 1
            assert steps <= self.most_steps, "this takes longer than one after another"
        assert self.driver.tokens == self.wanted
        assert set(self.driver.ends.values()) == {FinishReason.LENGTH}
        assert not [record for record in self.driver.decided if isinstance(record, Stalled)]

    def step(self) -> None:
        self.driver.step()
        if self.driver.scheduler.statistics().running or self.driver.scheduler.has_unfinished:
            assert self.driver.plan is not None, "a step in which nothing happens"
            assert self.driver.plan.num_tokens, "a step in which nothing is computed"


def profiles() -> Iterator[Any]:
    """All of them, each with a seed. Every two names meet in one that is not extra."""
    for index, places in enumerate(product(*(range(len(names)) for names in CHOICES.values()))):
        chosen = {hook: CHOICES[hook][place] for hook, place in zip(CHOICES, places, strict=True)}
        marks = [pytest.mark.extra] * (sum(places) % 3 > 0)
        yield pytest.param(chosen, index % 6, id="-".join(chosen.values()), marks=marks)


@pytest.mark.parametrize(("chosen", "seed"), list(profiles()))
def test_every_step_of_every_profile_computes_something(chosen: dict[str, str], seed: int):
    Load(seed, profile_of(**chosen)).run()


@pytest.mark.parametrize(
    "chosen",
    [
        {"order_admissions": "keeps-everybody-out"},
        {"order_admissions": "newest-first"},
        {"order_admissions": "keeps-the-old-out"},
        {"reserve_blocks": "wants-the-whole-pool"},
        {"select_victims": "spares-everybody", "reserve_blocks": "none"},
        {"select_victims": "takes-the-oldest", "reserve_blocks": "none"},
        {"guard_starvation": "marks-everybody", "reserve_blocks": "none"},
        {"allow_displacement": "displaces-everybody", "reserve_blocks": "none"},
        {
            "order_admissions": "keeps-everybody-out",
            "reserve_blocks": "wants-the-whole-pool",
            "select_victims": "takes-the-oldest",
            "guard_starvation": "marks-everybody",
            "allow_displacement": "displaces-everybody",
        },
    ],
    ids=lambda chosen: "+".join(chosen.values()),
)
def test_no_policy_can_stop_the_work(chosen: dict[str, str]):
    for seed in range(3):
        Load(seed, profile_of(**chosen)).run()


@pytest.mark.parametrize("cap", [0, 1, 3])
def test_a_policy_that_lets_anybody_displace_anybody_is_bounded_by_the_cap(cap: int):
    """Each request is pushed out `max_preemptions` times at most; after that it keeps its seat."""
    profile = profile_of(allow_displacement="displaces-everybody", reserve_blocks="none")
    load = Load(1, profile, num_blocks=64, max_num_seqs=2, max_preemptions=cap)

    load.run()

    displaced = [record.request for record in load.driver.decided if isinstance(record, Displaced)]
    most = max((displaced.count(request) for request in load.wanted), default=0)
    assert most == cap


def test_equal_priorities_never_push_each_other_out():
    profile = profile_of(
        order_admissions="priority",
        select_victims="lowest-priority",
        allow_displacement="strict-priority",
    )
    driver = Driver(profile, max_num_seqs=1)
    for request in range(6):
        driver.add(request, [request + 1], max_tokens=5, priority=1)

    driver.run()

    assert driver.preempted == []
    assert driver.admitted == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("reservation", ["none", "new-token-ratio"])
@pytest.mark.parametrize("flavour", FLAVOURS)
def test_a_cap_of_zero_with_everybody_pinned_neither_deadlocks_nor_fails_anybody(
    reservation: str, flavour: str
):
    profile = profile_of(
        guard_starvation="marks-everybody", reserve_blocks=reservation, choose_preemption=flavour
    )
    preempted = 0
    for seed in range(8):
        load = Load(seed, profile, max_preemptions=0)
        load.run()
        preempted += len(load.driver.preempted)

    assert preempted, "memory never ran short"


@pytest.mark.parametrize("seats", [1, 4, 8])
@pytest.mark.parametrize(
    "chosen",
    [
        {"order_admissions": "priority"},
        {"order_admissions": "newest-first"},
        {"order_admissions": "keeps-the-old-out"},
        {"order_admissions": "priority", "allow_displacement": "strict-priority"},
        {"order_admissions": "priority", "allow_displacement": "displaces-everybody"},
    ],
    ids=lambda chosen: "+".join(chosen.values()),
)
def test_under_a_flood_nobody_is_overtaken_beyond_the_bound(seats: int, chosen: dict[str, str]):
    driver = Driver(profile_of(**chosen), max_num_seqs=seats, num_blocks=64)
    flood = Flood(driver, [[7, 8, request + 1] for request in range(6)])

    flood.run(rich=[5], max_tokens=2, least=seats)

    flood.check()


@pytest.mark.parametrize("rich", [[5], list(range(1, 20)), list(range(1, 40))], ids=len)
def test_a_large_request_is_not_overtaken_beyond_the_bound_either(rich: list[int]):
    """It needs the memory and the tokens of a step that smaller ones could go on taking."""
    profile = profile_of(order_admissions="priority", reserve_blocks="none")
    driver = Driver(profile, max_num_seqs=4, num_blocks=16, max_num_batched_tokens=12)
    flood = Flood(driver, [list(range(1, 60)), list(range(100, 150))])

    flood.run(rich, max_tokens=2)

    flood.check()


@pytest.mark.parametrize("budget", [8, 12, 16])
def test_a_long_prompt_that_starves_beside_another_prefill_is_not_passed_over(budget: int):
    """A long prompt takes the step's tokens when the poor one begins to starve; short ones fit."""
    profile = profile_of(order_admissions="priority", reserve_blocks="none")
    driver = Driver(profile, max_num_seqs=4, num_blocks=64, max_num_batched_tokens=budget)
    flood = Flood(driver, [list(range(1, 62))])
    while len(overtakers(driver, 0)) < MAX_OVERTAKES - 6:
        for _ in range(4):
            flood.add([flood.next_request % 900 + 1])
        driver.step()
    flood.add(list(range(100, 162)))

    flood.run(rich=[])

    flood.check()
