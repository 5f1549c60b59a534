"""Hostile policies in the scheduler: every hook, alone and all at once, in everything they can do.

Steps are on a clock of their own, in which a rest is soon over; what is interrupted is interrupted
by real signals. Nothing is timed: a hook that nobody ended would hang its test.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import pytest

from cadenza.policies.contract import ENGINE_HOOKS, OBSERVERS
from cadenza.policies.decisions import Decisions
from cadenza.policies.discovery import discover
from cadenza.policies.hook_guard import SignalGuard
from cadenza.policies.profile import OBSERVER
from cadenza.policies.runner import STRIKES, PolicyRunner
from cadenza.testing import Driver, oracle
from tests.policies.hostile import KINDS, HostileModule, kinds_of, policy_of

# Under these the crowd reaches every hook
OTHERS = {
    "order_admissions": "priority",
    "allow_displacement": "strict-priority",
    "select_victims": "lowest-priority",
    "reserve_blocks": "none",
}
BETWEEN_STEPS_S = 0.05
# Whoever was ended before it had computed for so long may say that the machine was busy. A call is
# ended after PATIENCE_S: here a twenty-fifth of a core is enough for no endless one to be excused
BUDGET_S = 0.002
MOST_STEPS = 2_000


class Crowd:
    """Requests in a tight pool, under policies that may be hostile."""

    def __init__(self, folder: Path, guard: SignalGuard, hooks: Collection[str]) -> None:
        self.module = HostileModule(folder)
        chosen: dict[str, tuple[str, ...]] = {hook: (name,) for hook, name in OTHERS.items()}
        chosen |= {hook: (policy_of(hook),) for hook in hooks if hook not in OBSERVERS}
        chosen[OBSERVER] = tuple(policy_of(hook) for hook in hooks if hook in OBSERVERS)
        profile = discover(folder).profile(chosen, {})
        self.runner = PolicyRunner(profile, timer=time.monotonic, guard=guard, budget_s=BUDGET_S)
        decisions = Decisions(profile, self.runner)
        self.driver = Driver(
            decisions=decisions, num_blocks=20, num_host_blocks=8, max_num_seqs=4, max_model_len=48
        )
        self._chance = random.Random(3)
        self._wanted: dict[int, list[int]] = {}
        self._slow: list[int] = []  # requests whose readers have not taken everything
        self._prefix = [self._token() for _ in range(10)]

    def live_until(self, condition: Callable[[], bool]) -> None:
        """Take a step after the other, and more and more requests, until that is so."""
        for _ in range(MOST_STEPS):
            if condition():
                return
            if self.driver.scheduler.statistics().waiting < 6:
                self._arrive()
            self._step()
        raise AssertionError(self.runner.tallies)

    def end(self) -> None:
        """All that is left ends; everybody got the tokens that are right for the prompt."""
        for request in self._slow:
            self.driver.scheduler.grant(request, 100)
        while self.driver.scheduler.has_unfinished:
            self._step()
        assert self.driver.tokens == self._wanted

    def _arrive(self) -> None:
        request, rng = len(self._wanted), self._chance
        prompt = rng.choice((self._prefix, [])) + [
            self._token() for _ in range(rng.randrange(1, 9))
        ]
        max_tokens = rng.randrange(8, 24)
        self._wanted[request] = oracle(prompt, max_tokens)
        fields = {"credit": 4} if rng.random() < 0.3 else {}
        self._slow += [request] * len(fields)
        self.driver.add(
            request, prompt, max_tokens, ignore_eos=True, priority=rng.randrange(3), **fields
        )

    def _token(self) -> int:
        return self._chance.randrange(1, 900)

    def _step(self) -> None:
        if len(self._slow) > 2:
            self.driver.scheduler.grant(self._slow.pop(0), 100)
        self.driver.clock.advance(BETWEEN_STEPS_S)
        self.driver.step()


def faults(runner: PolicyRunner) -> dict[str, int]:
    """By hook, of the policies that are hostile in it."""
    return {
        hook: tally.faults
        for (policy, hook), tally in runner.tallies.items()
        if policy == policy_of(hook) and tally.faults
    }


@pytest.fixture
def guard() -> Iterator[SignalGuard]:
    with SignalGuard() as guard:
        yield guard


def check(folder: Path, guard: SignalGuard, kind: str, hooks: Collection[str]) -> None:
    """Whoever is hostile is quarantined, and serves after a release; nobody else notices.

    A starved machine may cost others a fault, too, but not three.
    """
    crowd, policies = Crowd(folder, guard, hooks), {policy_of(hook) for hook in hooks}
    runner = crowd.runner
    crowd.live_until(lambda: crowd.driver.scheduler.statistics().steps >= 5)
    crowd.module.arm(kind, hooks)
    crowd.live_until(lambda: {*runner.quarantined} == policies)
    assert faults(runner) == dict.fromkeys(hooks, STRIKES)

    crowd.module.disarm()
    for policy in policies:
        runner.release(policy)
    calls = {hook: runner.tallies[policy_of(hook), hook].calls for hook in hooks}
    crowd.live_until(
        lambda: all(runner.tallies[policy_of(hook), hook].calls > calls[hook] for hook in hooks)
    )
    assert runner.quarantined == ()
    crowd.end()


# One of each kind, and each in another hook
SOME = list(
    zip(
        KINDS,
        (
            "order_admissions",
            "on_generated",
            "select_victims",
            "on_finished",
            "predict_lengths",
            "plan_budget",
            "guard_starvation",
            "reserve_blocks",
        ),
        strict=True,
    )
)


@pytest.mark.parametrize(("kind", "hook"), SOME)
def test_one_hook_is_hostile(kind: str, hook: str, tmp_path: Path, guard: SignalGuard):
    check(tmp_path, guard, kind, [hook])


@pytest.mark.parametrize("kind", ["raises", "sleeps"])
def test_all_hooks_are_hostile_at_once(kind: str, tmp_path: Path, guard: SignalGuard):
    check(tmp_path, guard, kind, ENGINE_HOOKS)


@pytest.mark.extra
@pytest.mark.parametrize("hook", ENGINE_HOOKS)
def test_a_hook_is_hostile_in_every_way(hook: str, tmp_path: Path, guard: SignalGuard):
    for kind in kinds_of(hook):
        folder = tmp_path / kind
        folder.mkdir()
        check(folder, guard, kind, [hook])


@pytest.mark.extra
@pytest.mark.parametrize("kind", KINDS)
def test_all_hooks_are_hostile_at_once_in_every_way(kind: str, tmp_path: Path, guard: SignalGuard):
    hooks = [hook for hook in ENGINE_HOOKS if kind in kinds_of(hook)]
    check(tmp_path, guard, kind, hooks)
