"""The policies of the engine process, and how others take their place while it serves.

A change is prepared in a thread of its own, where foreign modules are imported, policies built, and
the hooks of new ones tried on throw-away instances. Only then, between two steps, does the loop
replace the reference. There is one change at a time; one that is not ready in time is given up.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

import structlog
from msgspec import convert

from cadenza.policies.blame import Blame
from cadenza.policies.contract import ARGUMENTS, ENGINE_HOOKS
from cadenza.policies.decisions import Decisions
from cadenza.policies.errors import ProfileError
from cadenza.policies.hook_guard import HookGuard
from cadenza.policies.library import LIMIT_S, Library, prepare, too_late
from cadenza.policies.preparation import Preparation, aside
from cadenza.policies.profile import Profile
from cadenza.policies.runner import FaultCount, PolicyRunner, PolicyUnusable
from cadenza.policies.shadow import SHADOW_BUDGET_S, Shadow, ShadowedDecisions
from cadenza.scheduler.scheduler import Scheduler
from cadenza.wire import messages
from cadenza.wire.messages import (
    DescribePolicies,
    HookUse,
    PoliciesAnswer,
    PoliciesState,
    PolicyConfig,
    ReleasePolicy,
    UseProfile,
    UseShadow,
)
from cadenza.wire.policies import Comparison, HookFaults, ProfileState, ShadowState

_USES_EVERY_S = 1.0  # while there is work

BUSY = "Another change of policies is under way; try again when it has ended."

Request: TypeAlias = UseProfile | UseShadow | ReleasePolicy | DescribePolicies

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Change:
    """What is being prepared, and what to do with it."""

    number: int
    preparation: Preparation[Profile]
    deadline_s: float
    apply: Callable[[Profile, Scheduler], None]
    too_late: str  # what to say if it takes longer


class EnginePolicies:
    """Which policies decide, and which only stand beside them. Belongs to the engine's loop."""

    def __init__(
        self,
        config: PolicyConfig,
        *,
        timer: Callable[[], float] = time.monotonic,
        guard: HookGuard | None = None,
        blame: Blame | None = None,
        library: Library | None = None,
        limit_s: float = LIMIT_S,
    ) -> None:
        """Build the first profile.

        Args:
            config: what to choose; where others are found is said here once for all.
            timer: monotonic seconds.
            guard: ends hook calls that take too long.
            blame: tells others of the call under way.
            library: all policies; None: whatever `config` finds.
            limit_s: for preparing a change.

        Raises:
            ProfileError: the profile cannot be used, or a plugin cannot.
        """
        self._library = library or library_of(config)
        self._timer = timer
        self._guard = guard
        self._blame = blame
        self._limit_s = limit_s
        self._live = self._library.profile(config.chosen, config.options, digests=config.digests)
        self._library.settle(self._live)
        self._runner = PolicyRunner(self._live, timer=timer, guard=guard, blame=blame)
        self._told_uses_s = -math.inf
        self._told_calls = 0
        self._shadow: Shadow | None = None
        self._change: _Change | None = None
        self.decisions = Decisions(self._live, self._runner, newcomers=())

    def restore(self, faults: Sequence[messages.FaultCount], uses: Sequence[HookUse]) -> None:
        """Go on from what a former engine has counted, and do not ask whom it had quarantined."""
        self._runner.restore(faults, uses)

    @property
    def is_changing(self) -> bool:
        """Whether a change is being prepared, so that `advance` may have something to do."""
        return self._change is not None

    def take_news(self) -> Sequence[FaultCount]:
        """As `PolicyRunner.take_news`, of the policies that decide."""
        return self._runner.take_news()

    def take_uses(self, *, rests: bool) -> Sequence[HookUse]:
        """How often each hook was asked, of the policies that decide.

        Nothing if that is as it was told before, or was told less than a second ago and the engine
        does not rest.
        """
        now_s = self._timer()
        if not rests and now_s - self._told_uses_s < _USES_EVERY_S:
            return ()
        tallies = self._runner.tallies
        calls = sum(tally.calls for tally in tallies.values())
        if calls == self._told_calls:
            return ()
        self._told_uses_s, self._told_calls = now_s, calls
        return [
            HookUse(policy, hook, tally.calls, tally.spent_s, tally.passed_over, tally.excused)
            for (policy, hook), tally in tallies.items()
        ]

    def handle(
        self, message: Request, scheduler: Scheduler
    ) -> PoliciesAnswer | PoliciesState | None:
        """Do what is asked. The answer; None if `advance` will give it."""
        match message:
            case UseProfile(number, config):
                take_over = partial(self._take_over, config.watermark)
                return self._prepare(number, config, self._live, take_over)
            case UseShadow(number, config):
                if config is None:
                    return self._drop_shadow(number, scheduler)
                return self._prepare(number, config, None, self._set_shadow)
            case ReleasePolicy(number, policy):
                return PoliciesAnswer(number, self._release(policy, scheduler))
            case DescribePolicies(number):
                return self._describe(number)

    def advance(self, scheduler: Scheduler) -> PoliciesAnswer | None:
        """Between two steps: let a change that is ready take effect; its answer."""
        change = self._change
        if change is None:
            return None
        if not change.preparation.future.done():
            if self._timer() < change.deadline_s:
                return None
            change.preparation.abandon()
            error: str | None = change.too_late
        else:
            error = self._apply(change, scheduler)
        self._change = None
        return PoliciesAnswer(change.number, error)

    def _prepare(
        self,
        number: int,
        config: PolicyConfig,
        before: Profile | None,
        apply: Callable[[Profile, Scheduler], None],
    ) -> PoliciesAnswer | None:
        if self._change is not None:
            return PoliciesAnswer(number, BUSY)

        def build() -> Profile:
            return self._library.tried(
                config.chosen, config.options, ENGINE_HOOKS, before=before, digests=config.digests
            )

        deadline_s = self._timer() + self._limit_s
        self._change = _Change(
            number,
            prepare(build),
            deadline_s,
            apply,
            too_late=too_late(config.chosen, before, self._limit_s),
        )
        return None

    def _apply(self, change: _Change, scheduler: Scheduler) -> str | None:
        error = change.preparation.future.exception()
        if error is not None:
            return str(error)
        profile = change.preparation.future.result()
        try:
            change.apply(profile, scheduler)
        except ProfileError as error:  # instances built anew meanwhile cannot be taken over
            aside(profile.let_go, self._limit_s)
            return str(error)
        self._library.settle(profile)
        return None

    def _take_over(self, watermark: float | None, profile: Profile, scheduler: Scheduler) -> None:
        before = self._live
        profile.follow(before)  # may fail; nothing has changed yet
        self._live = profile
        self._runner.use(profile)
        settled = profile.kept - self.decisions.newcomers
        self._decide(scheduler, {*profile.policies} - settled, takes_over=True)
        scheduler.leave_free(scheduler.config.watermark if watermark is None else watermark)
        aside(before.let_go, self._limit_s)
        _log.info("policies changed", decisions=profile.names)

    def _set_shadow(self, profile: Profile, scheduler: Scheduler) -> None:
        runner = PolicyRunner(
            profile,
            timer=self._timer,
            guard=self._guard,
            blame=self._blame,
            budget_s=SHADOW_BUDGET_S,
            log=structlog.get_logger(__name__, shadow=True),
        )
        self._replace_shadow(Shadow(profile, runner), scheduler)

    def _drop_shadow(self, number: int, scheduler: Scheduler) -> PoliciesAnswer:
        if self._change is not None:
            return PoliciesAnswer(number, BUSY)
        if self._shadow is not None:
            self._replace_shadow(None, scheduler)
        return PoliciesAnswer(number)

    def _replace_shadow(self, shadow: Shadow | None, scheduler: Scheduler) -> None:
        before, self._shadow = self._shadow, shadow
        self._decide(scheduler, self.decisions.newcomers, takes_over=False)
        if before is not None:
            aside(before.profile.let_go, self._limit_s)

    def _decide(
        self, scheduler: Scheduler, newcomers: Collection[str], *, takes_over: bool
    ) -> None:
        """From the next step on; only newcomers are told who is here."""
        live, runner, shadow = self._live, self._runner, self._shadow
        if shadow is None:
            self.decisions = Decisions(live, runner, newcomers)
        else:
            self.decisions = ShadowedDecisions(live, runner, shadow, newcomers)
        scheduler.use(self.decisions, takes_over=takes_over)

    def _release(self, policy: str, scheduler: Scheduler) -> str | None:
        """What is wrong, if anything is, in either profile. The fresh instances are newcomers."""
        asked = {"live": (self._live, self._runner, self.decisions)}
        if self._shadow is not None:
            shadow = self._shadow
            asked["shadow"] = (shadow.profile, shadow.runner, shadow.decisions)
        faults, is_known = [], False
        for name, (profile, runner, decisions) in asked.items():
            if policy not in profile.policies:
                continue
            is_known = True
            fresh = {policy} & {*runner.quarantined}
            try:
                runner.release(policy)
                decisions.newcomers |= fresh
            except PolicyUnusable as error:
                faults.append(f"{error} (in the {name} profile)")
        if not is_known:
            names = dict.fromkeys(name for each, _, _ in asked.values() for name in each.policies)
            return f"The policy {policy!r} is not in use; {', '.join(names)} are."
        scheduler.use(self.decisions, takes_over=False)
        return "; ".join(faults) or None

    def _describe(self, number: int) -> PoliciesState:
        shadow = None
        if isinstance(self.decisions, ShadowedDecisions) and self._shadow is not None:
            compared = convert(
                self.decisions.comparison, tuple[Comparison, ...], from_attributes=True
            )
            shadow = ShadowState(_state(self._shadow.profile, self._shadow.runner), compared)
        return PoliciesState(number, _state(self._live, self._runner), shadow)


def library_of(config: PolicyConfig) -> Library:
    """All policies that a configuration can find, in this process."""
    plugins_dir = None if config.plugins_dir is None else Path(config.plugins_dir)
    return Library(plugins_dir, config.plugins, trace=config.trace)


def _state(profile: Profile, runner: PolicyRunner) -> ProfileState:
    return ProfileState(
        decisions={hook: names for hook in ARGUMENTS if (names := profile.deciding(hook))},
        options={policy: dict(given) for policy, given in profile.options.items()},
        faults=tuple(HookFaults(*each) for each in runner.unanswered()),
        quarantined=runner.quarantined,
    )
