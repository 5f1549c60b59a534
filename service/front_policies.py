"""The policies of the front process: instances of its own, and what became of them.

They are asked on the event loop's thread, which every stream waits for, so a guard ends what takes
too long, and arrivals that come close together share one budget: half of the loop's time, beyond
what a step may have at once. Nobody supervises this process: one long call of C code holds it until
it returns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import structlog
from msgspec import convert

from cadenza.policies.contract import FRONT_HOOKS
from cadenza.policies.front_decisions import FrontDecisions
from cadenza.policies.hook_guard import HookGuard
from cadenza.policies.profile import Profile
from cadenza.policies.runner import FaultCount, PolicyRunner, PolicyUnusable
from cadenza.policies.shadow import SHADOW_BUDGET_S, Shadow, ShadowedFrontDecisions
from cadenza.wire.messages import HookUse
from cadenza.wire.policies import Comparison, HookFaults, ProfileState, ShadowState

_REFILL = 0.5  # of the time that goes by, for all policies together
_SHADOW_REFILL = 0.1  # besides, for those of a shadow


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
        self._guard, self._timer = guard, timer
        self._runner = PolicyRunner(self._profile, timer=timer, guard=guard, refill=_REFILL)
        self._shadow: Shadow | None = None
        self._decide()

    def use(self, profile: Profile) -> None:
        """Ask the policies of a profile from now on that was built to follow the present one.

        Those that it took over keep their standing. What was counted of all others stays.
        """
        profile.follow(self._profile)
        self._profile = profile
        self._runner.use(profile)
        self._decide()

    def shadow(self, profile: Profile | None) -> Profile | None:
        """Ask the policies of a second profile as well, and only compare; None: of none.

        Returns the profile that was asked so until now; nobody asks it any more.
        """
        before, self._shadow = self._shadow, None
        if profile is not None:
            runner = PolicyRunner(
                profile,
                timer=self._timer,
                guard=self._guard,
                budget_s=SHADOW_BUDGET_S,
                refill=_SHADOW_REFILL,
                log=structlog.get_logger(__name__, shadow=True),
            )
            self._shadow = Shadow(profile, runner)
        self._decide()
        return None if before is None else before.profile

    def _decide(self) -> None:
        if self._shadow is None:
            self.decisions = FrontDecisions(self._profile, self._runner)
        else:
            self.decisions = ShadowedFrontDecisions(self._profile, self._runner, self._shadow)

    def release(self, policy: str) -> dict[str, str]:
        """Ask a quarantined policy again, a fresh instance of it, also as the shadow's.

        By profile, `live` or `shadow`, why it cannot be built there, which the other does not mind.

        Raises:
            KeyError: neither profile has such a policy.
        """
        asked = {"live": (self._profile, self._runner)}
        if self._shadow is not None:
            asked["shadow"] = (self._shadow.profile, self._shadow.runner)
        if policy not in self.in_use:
            raise KeyError(policy)
        faults = {}
        for name, (profile, runner) in asked.items():
            if policy not in profile.policies:
                continue
            try:
                runner.release(policy)
            except PolicyUnusable as error:
                faults[name] = str(error)
        return faults

    @property
    def in_use(self) -> tuple[str, ...]:
        """The policies of the profile, and of the shadow's if there is one."""
        shadow = () if self._shadow is None else self._shadow.profile.policies
        return tuple(dict.fromkeys((*self._profile.policies, *shadow)))

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
            HookUse(policy, hook, tally.calls, tally.spent_s, tally.passed_over, tally.excused)
            for (policy, hook), tally in self._runner.tallies.items()
        ]

    @property
    def hook_faults(self) -> Sequence[HookFaults]:
        """The same with what each did the last time."""
        return _hook_faults(self._runner)

    @property
    def shadow_state(self) -> ShadowState | None:
        """How the shadow fares, and what it would have decided otherwise; None: there is none."""
        if self._shadow is None or not isinstance(self.decisions, ShadowedFrontDecisions):
            return None
        profile, runner = self._shadow.profile, self._shadow.runner
        return ShadowState(
            ProfileState(
                decisions={hook: profile.deciding(hook) for hook in FRONT_HOOKS},
                options={},
                faults=_hook_faults(runner),
                quarantined=runner.quarantined,
            ),
            convert(self.decisions.comparison, tuple[Comparison, ...], from_attributes=True),
        )


def _hook_faults(runner: PolicyRunner) -> tuple[HookFaults, ...]:
    return tuple(HookFaults(*each) for each in runner.unanswered())
