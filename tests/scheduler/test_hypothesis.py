"""Lives that hypothesis searches, so that what goes wrong is shrunk to a few acts.

The same checks as in `test_properties`, which runs many more steps. Settings are fixed: the search
is the same every time.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from cadenza.scheduler.costs import CostModel
from cadenza.testing import Driver
from cadenza.testing.driver import STEP_S
from tests.scheduler.lives import CHOICES, NEVER, Life, profile_of

LEAST_STEPS = 5_000
SETTINGS = settings(
    max_examples=240,  # how many steps they have depends on what else is imported; always enough
    stateful_step_count=40,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)

PROFILES = st.fixed_dictionaries({hook: st.sampled_from(names) for hook, names in CHOICES.items()})
LIMITS = st.fixed_dictionaries(
    {
        "num_blocks": st.integers(4, 16),
        "block_size": st.sampled_from([1, 2, 4]),
        "max_num_seqs": st.integers(1, 5),
        "enable_prefix_caching": st.booleans(),
        "watermark": st.sampled_from([0.0, 0.1]),
        "num_host_blocks": st.sampled_from([0, 2, 40]),
        "max_preemptions": st.sampled_from([0, 1, 8]),
    }
)
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "priority": st.integers(0, 2),
        "cache_salt": st.sampled_from(["", "salt"]),
        "may_swap": st.booleans(),
        "may_recompute": st.booleans(),
    },
)
PROMPTS = st.lists(st.integers(1, 2), min_size=1, max_size=20)
WHICH = st.integers(0, 30)


class Lives(RuleBasedStateMachine):
    """Acts upon one life; a number of an act names a choice that is still there, if any is."""

    steps = 0  # of all lives together

    @initialize(profile=PROFILES, limits=LIMITS, more_tokens=st.integers(0, 20))
    def begin(self, profile: dict[str, str], limits: dict[str, Any], more_tokens: int) -> None:
        size, seats = limits["block_size"], limits["max_num_seqs"]
        driver = Driver(
            profile_of(profile),
            costs=CostModel(token_s=1e-3, copy_block_s=1e-3),
            max_model_len=min(24, limits["num_blocks"] * size),
            max_num_batched_tokens=seats + size + more_tokens,
            stall_steps=50,
            **limits,
        )
        self.life = Life(driver, "this life")

    @rule(
        prompt=PROMPTS,
        max_tokens=st.integers(1, 16),
        n=st.sampled_from([1, 1, 2, 3]),
        window=st.none() | st.integers(0, 6),
        fields=FIELDS,
    )
    def arrive(
        self, prompt: list[int], max_tokens: int, n: int, window: int | None, fields: dict[str, Any]
    ) -> None:
        config = self.life.driver.scheduler.config
        prompt, n = prompt[: config.max_model_len - 1], min(n, config.max_num_seqs)
        credit = None if window is None else n + window
        assert self.life.arrive(prompt, max_tokens, n, credit=credit, **fields)

    @rule(num=st.integers(1, 6))
    def step(self, num: int) -> None:
        for _ in range(num):
            self.life.step()

    @rule(which=WHICH, stopped=st.booleans())
    def leave(self, which: int, stopped: bool) -> None:
        self.life.leave(self._choice(which), stopped=stopped)

    @rule(which=WHICH)
    def fail(self, which: int) -> None:
        self.life.fail(self._choice(which))

    @rule(which=WHICH, swap=st.booleans())
    def preempt(self, which: int, swap: bool) -> None:
        self.life.preempt(self._choice(which), swap=swap)

    @rule(which=WHICH)
    def grant(self, which: int) -> None:
        self.life.grant(self._choice(which))

    @rule(which=WHICH, steps=st.none() | st.integers(-1, 8))
    def set_deadline(self, which: int, steps: int | None) -> None:
        at_s = NEVER if steps is None else self.life.driver.now_s + steps * STEP_S
        self.life.set_deadline(self._choice(which), at_s)

    @rule(names=PROFILES)
    def use(self, names: dict[str, str]) -> None:
        self.life.use(names)

    @rule()
    def reset_prefix_cache(self) -> None:
        self.life.driver.scheduler.reset_prefix_cache()

    def _choice(self, which: int) -> int:
        there = self.life.unfinished
        return there[which % len(there)] if there else which

    def teardown(self) -> None:
        if hasattr(self, "life"):
            self.life.settle()
            Lives.steps += self.life.driver.scheduler.statistics().steps


@pytest.mark.extra
def test_searched_lives_lose_and_double_nothing():
    Lives.steps = 0

    run_state_machine_as_test(Lives, settings=SETTINGS)

    assert Lives.steps >= LEAST_STEPS
