"""Keeps the standing of policies and what their hooks did, and tells what comes of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from structlog.typing import FilteringBoundLogger

from cadenza.policies.blame import Blame
from cadenza.policies.builtin import DEFAULTS
from cadenza.policies.standing import (
    CountedFaults,
    CountedUse,
    Fault,
    FaultCount,
    Hook,
    Standing,
    Tally,
    Unanswered,
)

_FORMER = "failed in an engine process that is gone"


class When(NamedTuple):
    """The step in which something happens, or whatever stands for one."""

    step_id: int
    now_s: float


class Ledger:
    """One entry a hook that was asked, one standing a policy."""

    def __init__(self, blame: Blame, log: FilteringBoundLogger, timer: Callable[[], float]) -> None:
        """`blame` numbers the hooks; `log` is told of faults and what they lead to."""
        self._blame = blame
        self._log = log
        self._timer = timer
        self.hooks: dict[tuple[str, str], Hook] = {}  # by policy and name
        self.standings: dict[str, Standing] = {}
        self._has_news = False
        self.faults = 0  # of all policies

    @property
    def tallies(self) -> Mapping[tuple[str, str], Tally]:
        """By policy and hook, for those that were asked at least once."""
        return {key: replace(hook.tally) for key, hook in self.hooks.items()}

    @property
    def quarantined(self) -> tuple[str, ...]:
        """The policies that are not asked."""
        return tuple(name for name, each in self.standings.items() if each.quarantined)

    def num_unanswered(self, policy: str, hook: str) -> int:
        """How often a policy was to be asked and gave no answer that counts."""
        asked = self.hooks.get((policy, hook))
        if asked is None:
            return 0
        return asked.tally.faults + asked.tally.excused + asked.tally.passed_over

    def unanswered(self) -> tuple[Unanswered, ...]:
        """Every hook that ever gave no answer that counts."""
        now_s = self._timer()
        return tuple(
            Unanswered(
                policy,
                name,
                tally.faults,
                tally.last_error,
                now_s - tally.failed_s if tally.faults else 0.0,
                tally.passed_over,
                tally.excused,
            )
            for (policy, name), tally in ((key, hook.tally) for key, hook in self.hooks.items())
            if tally.faults or tally.passed_over or tally.excused
        )

    def take_news(self) -> tuple[FaultCount, ...]:
        """Every hook that ever failed, if that or a quarantine has changed since the last call."""
        if not self._has_news:
            return ()
        self._has_news = False
        return tuple(
            FaultCount(policy, name, hook.tally.faults, hook.standing.quarantined)
            for (policy, name), hook in self.hooks.items()
            if hook.tally.faults
        )

    def open(self, policy: str, name: str) -> Hook:
        """The entry of a hook that is asked for the first time."""
        number = self._blame.number_of(policy, name)
        hook = self.hooks[policy, name] = Hook(policy, name, number, self._standing_of(policy))
        return hook

    def count_fault(self, asked: Hook, when: When, fault: Fault) -> None:
        """Log the first fault of each policy in each hook; a broken one would fill the log.

        The first after a release is logged again. A policy that has failed once too often is
        quarantined.
        """
        self.faults += 1
        self._has_news = True
        tally, standing = asked.tally, asked.standing
        tally.faults += 1
        tally.last_error, tally.failed_s = fault.text, self._timer()
        if not asked.told:
            asked.told = True
            warn = self._log.error if standing.trusted else self._log.warning
            more = {"trace": fault.trace} if fault.trace else {}
            warn("policy fault", hook=asked.name, policy=asked.policy, error=fault.text, **more)
        if not standing.trusted and standing.strike(*when):
            self._quarantine(asked, fault.text)

    def excuse(self, asked: Hook, when: When, what: str, why: str) -> None:
        """It took too long without being at fault, and is not asked again in this step.

        `what` it did, and `why` that is excused.
        """
        asked.tally.excused += 1
        asked.standing.failed_step = when.step_id
        if not asked.standing.was_told_excused:
            asked.standing.was_told_excused = True
            warn = self._log.warning
            warn("policy excused", hook=asked.name, policy=asked.policy, what=what, why=why)

    def lack_time(self, asked: Hook, left_s: float) -> None:
        """It is not asked, as others have spent the time; nobody's fault.

        But a policy that is never asked decides nothing.
        """
        if not asked.standing.lacked_time:
            asked.standing.lacked_time = True
            left_ms = round(left_s * 1e3, 1)
            warn = self._log.warning
            warn("policy lacks time", hook=asked.name, policy=asked.policy, left_ms=left_ms)

    def keep(self, policies: Collection[str]) -> None:
        """Let all others begin anew; what was counted of them stays."""
        changed = {*self.standings}.difference(policies)
        if any(self.standings[policy].quarantined for policy in changed):
            self._has_news = True
        for policy in changed:
            del self.standings[policy]
        for hook in self.hooks.values():
            if hook.policy not in policies:
                hook.standing = self._standing_of(hook.policy)
                hook.told = hook.was_excused = False

    def restore(self, faults: Iterable[CountedFaults], uses: Iterable[CountedUse]) -> None:
        """Go on from what another ledger has counted; its quarantines stay."""
        for use in uses:
            tally = self.open(use.policy, use.hook).tally
            tally.calls, tally.spent_s = use.calls, use.spent_s
            tally.passed_over, tally.excused = use.passed_over, use.excused
        for count in faults:
            key = count.policy, count.hook
            hook = self.hooks.get(key) or self.open(*key)
            hook.tally.faults, hook.tally.last_error = count.faults, _FORMER
            hook.tally.failed_s = self._timer()
            hook.standing.quarantined |= count.quarantined and not hook.standing.trusted
            self.faults += count.faults
            self._has_news = True

    def release(self, policy: str) -> None:
        """Let a quarantined policy begin anew."""
        self.standings[policy].forgive()
        for hook in self.hooks.values():
            if hook.policy == policy:
                hook.told = hook.was_excused = False
        self._has_news = True
        self._log.info("policy released", policy=policy)

    def _standing_of(self, policy: str) -> Standing:
        standing = self.standings.get(policy)
        if standing is None:
            standing = self.standings[policy] = Standing(trusted=policy in DEFAULTS.values())
        return standing

    def _quarantine(self, asked: Hook, error: str) -> None:
        if not asked.standing.quarantined:
            asked.standing.quarantined = True
            self._has_news = True
            tell = self._log.error
            tell("policy quarantined", policy=asked.policy, hook=asked.name, error=error)
