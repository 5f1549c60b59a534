"""Answers that the scheduler can use: over made-up requests, and while it serves."""

from __future__ import annotations

import random

from cadenza.policies.hook_guard import HookGuard
from cadenza.testing.driver import Driver
from cadenza.testing.fake_runner import oracle
from cadenza.testing.scenes import life, random_scene
from cadenza.testing.trial import Failure, Subject, Trial

_SIZES = (0, 1, 2, 40, 300)
_SEEDS = range(2)
_REQUESTS = 48
_MOST_STEPS = 3_000
_BUILT_ANEW = (5, 25)  # the steps before which the instance is replaced, as after an interruption


def check_answers(subject: Subject, guard: HookGuard) -> None:
    """Raises Failure if a hook raises, or answers with the wrong type, shape or values."""
    alone = [[random_scene(num, seed)] for num in _SIZES for seed in _SEEDS]
    for hooks in subject.processes:
        for scenes in (*alone, life(20, 10, seed=3)):
            trial = Trial(subject, guard)
            for scene in scenes:
                for hook, arguments in scene.calls(hooks):
                    trial.ask(hook, arguments)


def check_service(subject: Subject, guard: HookGuard) -> None:
    """Raises Failure if hooks fail where memory is short, or somebody waits for ever.

    The instance is replaced under way, and its successor meets requests that it never heard of.
    """
    trial = Trial(subject, guard, **_SHORT_OF_MEMORY)
    driver = Driver(decisions=trial.decisions, num_blocks=24, num_host_blocks=8)
    wanted = _crowd(driver)
    for num in range(_MOST_STEPS):
        if not driver.scheduler.has_unfinished:
            break
        if num in _BUILT_ANEW:
            trial.profile.rebuild(subject.name)
        driver.step()
        trial.check("in a scheduler whose memory is short")
    missing = sorted(request for request in wanted if request not in driver.ends)
    if missing:
        raise Failure(
            f"after {_MOST_STEPS} steps without arrivals {len(missing)} of {len(wanted)} requests "
            f"are not done: {missing}"
        )
    assert driver.tokens == wanted, "the scheduler itself is wrong"


_SHORT_OF_MEMORY = {"reserve_blocks": "none"}  # so that there are victims


def _crowd(driver: Driver) -> dict[int, list[int]]:
    """Requests of all kinds, and the tokens that they must get."""
    rng = random.Random(7)
    prefixes: list[list[int]] = [[1] * 12, [2] * 12, []]
    wanted = {}
    for request in range(_REQUESTS):
        tail = [rng.randrange(1, 900) for _ in range(rng.randrange(1, 9))]
        prompt, length = rng.choice(prefixes) + tail, rng.randrange(1, 16)
        wanted[request] = oracle(prompt, length)
        driver.add(
            request,
            prompt,
            length,
            ignore_eos=True,
            priority=rng.randrange(3),
            tenant=rng.choice(("a", "b", "")),
            ttft_target_s=rng.choice((0.02, 0.5, float("inf"))),
            tpot_target_s=rng.choice((0.02, float("inf"))),
            predicted_tokens=rng.choice((0, length)),
        )
        if request % 3 == 0:
            driver.step()
    return wanted
