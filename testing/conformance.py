"""Checks that every policy should pass: subclass `PolicyConformance`, and pytest runs them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any, ClassVar
from unittest import SkipTest

from cadenza.policies.hook_guard import HookGuard
from cadenza.testing.answers import check_answers, check_service
from cadenza.testing.costs import check_cost
from cadenza.testing.fingerprint import NOT_THERE
from cadenza.testing.growth import check_growth
from cadenza.testing.purity import check_clocks, check_determinism, check_input, fingerprint
from cadenza.testing.starvation import check_starvation
from cadenza.testing.trial import PATIENCE_S, Failure, Subject, hook_guard

__all__ = ["Failure", "PolicyConformance"]

Check = Callable[[Subject, HookGuard], None]


class PolicyConformance:
    """What the contract asks of a policy, as tests that pytest collects from a subclass.

        class TestMine(PolicyConformance):
            policy = MyPolicy
            options = {"weight": 2}

    Every check builds the policy anew, asks all hooks that it has, and raises `Failure` (an
    AssertionError) with the hook, what was expected, what came, and which requests it was about.
    A hook that hangs fails its check, as the main thread's SIGALRM ends it. Who overrides a check
    has a reason, and says which.
    """

    policy: ClassVar[type]
    options: ClassVar[Mapping[str, Any]] = {}
    patience_s: ClassVar[float] = PATIENCE_S
    """Seconds of processor time, or of sleep, after which a call counts as hanging."""

    def test_a_profile_takes_it(self) -> None:
        """Name, hooks, `Options` and version are as they should be, and it can be built."""
        self._subject()

    def test_answers_can_be_used(self) -> None:
        """Right type, shape and values, over nobody, one request, two, and many."""
        self._check(check_answers)

    def test_answers_follow_from_the_questions(self) -> None:
        """Two fresh instances answer alike, whatever `random` does."""
        self._check(check_determinism)

    def test_answers_do_not_depend_on_the_hash_seed(self) -> None:
        """A process with another PYTHONHASHSEED answers alike: no order of a set decides."""
        subject = self._subject()
        with hook_guard() as guard:
            own = fingerprint(subject, guard)
        if _of_another_process(subject) != own:
            raise Failure(
                f"policy {subject.name!r} answers differently in a process with another "
                "PYTHONHASHSEED: something depends on the order of a set, or on hash()"
            )

    def test_hooks_do_not_ask_for_the_time_or_sleep(self) -> None:
        """`step.now_s` is the time."""
        self._check(check_clocks)

    def test_views_are_left_alone(self) -> None:
        """Nothing is written to, and no view is kept."""
        self._check(check_input)

    def test_the_cost_is_bounded(self) -> None:
        """Lines of Python and memory grow no faster than n log n, and stay within a step's time."""
        self._check(check_cost)

    def test_it_serves_in_a_scheduler(self) -> None:
        """Everybody gets the right tokens where memory is short, and no hook fails."""
        self._check(check_service)

    def test_nobody_starves(self) -> None:
        """Under a flood, the default guard's bound on overtakes holds."""
        if "order_admissions" not in self._subject().hooks:
            raise SkipTest("it orders nothing")
        self._check(check_starvation)

    def test_it_forgets_who_is_gone(self) -> None:
        """What an instance keeps does not grow with every request."""
        self._check(check_growth)

    def _check(self, check: Check) -> None:
        with hook_guard() as guard:
            check(self._subject(), guard)

    def _subject(self) -> Subject:
        return Subject(self.policy, self.options, self.patience_s)


def _of_another_process(subject: Subject) -> str:
    """The fingerprint in a process with another seed for hashes.

    Raises:
        SkipTest: the class cannot be found there, as it is local to a function, or its module
            imports what only this process finds.
    """
    policy = subject.policy
    if "<" in policy.__qualname__:
        raise SkipTest(f"{policy.__qualname__} cannot be imported in another process")
    file = getattr(sys.modules.get(policy.__module__), "__file__", None)
    told = [policy.__module__, policy.__qualname__, file, dict(subject.options)]
    seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    path = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        [sys.executable, "-P", "-m", "cadenza.testing.fingerprint", json.dumps(told)],
        env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    if done.returncode == NOT_THERE:
        raise SkipTest(done.stdout)
    if done.returncode:
        raise Failure(f"in a process of its own: {done.stderr.strip() or done.stdout}")
    return done.stdout
