"""The policies of the front process: instances of its own, and what became of them.

They are asked on the event loop's thread, which every stream waits for, so a guard ends what takes
too long, and arrivals that come close together share one budget: half of the loop's time, beyond
what a step may have at once. Nobody supervises this process: one long call of C code holds it until
it returns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from cadenza.policies.front_decisions import FrontDecisions
from cadenza.policies.hook_guard import HookGuard
from cadenza.policies.profile import Profile
from cadenza.policies.runner import FaultCount, PolicyRunner
from cadenza.wire.messages import HookUse

_REFILL = 0.5  # of the time that goes by, for all policies together


class FrontPolicies:
    """Asks the front's hooks of one profile, which can be another's between two calls."""

    def __init__(
        self,
        profile: Profile | None = None,
        *,
        guard: HookGuard | None = None,
        timer: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """Ask the policies of `profile`, by default the defaults.

        Args:
            profile: whose policies are asked; its instances belong to this object.
            guard: ends calls that take too long; None: nobody does.
            timer: seconds, to measure calls with; without one no call takes any time.
        """
        self._profile = profile or Profile()
        self._runner = PolicyRunner(self._profile, timer=timer, guard=guard, refill=_REFILL)
        self.decisions = FrontDecisions(self._profile, self._runner)

    def use(self, profile: Profile) -> None:
        """Ask the policies of a profile from now on that was built to follow the present one.

        Those that it took over keep their standing. What was counted of all others stays.
        """
        profile.follow(self._profile)
        self._profile = profile
        self._runner.use(profile)
        self.decisions = FrontDecisions(profile, self._runner)

    def release(self, policy: str) -> None:
        """Ask a quarantined policy again, a fresh instance of it.

        Raises:
            KeyError: the profile has no such policy.
            PolicyUnusable: it cannot be built.
        """
        self._runner.release(policy)

    @property
    def profile(self) -> Profile:
        """Whose policies are asked."""
        return self._profile

    @property
    def quarantined(self) -> tuple[str, ...]:
        """The policies that are not asked."""
        return self._runner.quarantined

    @property
    def faults(self) -> tuple[FaultCount, ...]:
        """Every hook that failed since the front started, also under former profiles."""
        out = self._runner.quarantined
        return tuple(
            FaultCount(policy, hook, tally.faults, policy in out)
            for (policy, hook), tally in self._runner.tallies.items()
            if tally.faults
        )

    @property
    def uses(self) -> Sequence[HookUse]:
        """How often each hook was asked since the front started, also under former profiles."""
        return [
            HookUse(policy, hook, tally.calls, tally.spent_s)
            for (policy, hook), tally in self._runner.tallies.items()
        ]

    @property
    def last_errors(self) -> Mapping[tuple[str, str], str]:
        """By policy and hook, of every hook that failed."""
        tallies = self._runner.tallies
        return {key: tally.last_error for key, tally in tallies.items() if tally.faults}
