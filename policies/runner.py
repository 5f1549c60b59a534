"""Calls hooks, and sees to it that a policy's failure costs that policy the decision, nobody else.

A policy fails in a step when it raises, answers wrongly, or overruns. It is not asked again in that
step; the default decides. After STRIKES failures within WINDOW_S it is quarantined, all its hooks
together, until `release`. All policies share one time budget a step; once little of it is left,
those not asked yet are passed over, as an interrupted call costs its policy what it has learned.

The default policies are trusted: they are what decides when others fail, so they have no time limit
and are never passed over. One that raises is counted and logged as an error, and has no opinion.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

import structlog
from structlog.typing import FilteringBoundLogger

from cadenza.policies.blame import SIZE, Blame
from cadenza.policies.builtin import DEFAULTS
from cadenza.policies.errors import describe
from cadenza.policies.hook_guard import PATIENCE_S, HookGuard, Interrupted, NoGuard
from cadenza.policies.profile import Profile
from cadenza.policies.views import Occasion

BUDGET_S = 0.010  # of all policies together, in a step
STRIKES = 3
WINDOW_S = 60.0

_LEAST_SHARE = 0.2  # of the budget; who would have less is not asked
_REBUILD_S = 0.050  # for building an instance anew

T = TypeVar("T")

_log: FilteringBoundLogger = structlog.get_logger(__name__)


class PolicyUnusable(Exception):
    """A policy cannot be built anew; it stays in quarantine."""


@dataclass(slots=True)
class Tally:
    """What one hook of one policy did so far."""

    calls: int = 0
    faults: int = 0
    excused: int = 0  # interrupted for lack of time that others had spent, or the machine
    passed_over: int = 0  # not asked: quarantined, at fault in the step, or too little time left
    spent_s: float = 0.0
    last_error: str = ""


class FaultCount(NamedTuple):
    """For whoever watches: a hook that has failed, and whether its policy is quarantined now."""

    policy: str
    hook: str
    faults: int
    quarantined: bool


@dataclass(slots=True)
class _Standing:
    """What a policy's failures have led to."""

    trusted: bool
    quarantined: bool = False
    failed_step: int | None = None
    lacked_time: bool = False  # and the log says so
    strikes: deque[float] = field(default_factory=lambda: deque(maxlen=STRIKES))

    def is_out(self, step_id: int) -> bool:
        return self.quarantined or self.failed_step == step_id


@dataclass(slots=True)
class _Hook:
    """One hook of one policy."""

    policy: str
    name: str
    number: int  # for the blame
    standing: _Standing
    told: bool = False  # of a fault, in the log
    tally: Tally = field(default_factory=Tally)


class PolicyRunner:
    """The only caller of a profile's hooks. Not for use from several threads."""

    def __init__(
        self,
        profile: Profile,
        *,
        timer: Callable[[], float] = lambda: 0.0,
        guard: HookGuard | None = None,
        blame: Blame | None = None,
        budget_s: float = BUDGET_S,
        log: FilteringBoundLogger = _log,
    ) -> None:
        """Call the hooks of `profile`.

        Args:
            profile: whose policies are asked.
            timer: seconds, to measure calls with. Without one no call takes any time, so that what
                is decided does not depend on the machine.
            guard: ends calls that take too long; None: nobody does, and Ctrl-C passes through. With
                one, a KeyboardInterrupt is a fault like any other.
            blame: where the call under way is noted.
            budget_s: for all policies together in a step.
            log: told of faults and what they lead to.
        """
        self._profile = profile
        self._timer = timer
        self._guard = guard or NoGuard()
        # Whoever guards calls ignores SIGINT, so that a KeyboardInterrupt is a policy's own
        is_free = isinstance(self._guard, NoGuard)
        self._not_theirs: tuple[type[BaseException], ...] = (KeyboardInterrupt,) if is_free else ()
        self._blame = blame or Blame(bytearray(SIZE))
        self._budget_s = budget_s
        self._log = log
        self._hooks: dict[tuple[str, str], _Hook] = {}
        self._standings: dict[str, _Standing] = {}
        self._step_id: int | None = None
        self._spent_s = 0.0  # of the budget, in this step
        self._has_news = False
        self.faults = 0  # of all policies

    @property
    def tallies(self) -> Mapping[tuple[str, str], Tally]:
        """By policy and hook, for those that were asked at least once."""
        return {key: replace(hook.tally) for key, hook in self._hooks.items()}

    @property
    def quarantined(self) -> tuple[str, ...]:
        """The policies that are not asked."""
        return tuple(name for name, each in self._standings.items() if each.quarantined)

    def num_unanswered(self, policy: str, hook: str) -> int:
        """How often a policy was to be asked and gave no answer that counts."""
        asked = self._hooks.get((policy, hook))
        if asked is None:
            return 0
        return asked.tally.faults + asked.tally.excused + asked.tally.passed_over

    def take_news(self) -> tuple[FaultCount, ...]:
        """Every hook that ever failed, if that or a quarantine has changed since the last call."""
        if not self._has_news:
            return ()
        self._has_news = False
        return tuple(
            FaultCount(policy, name, hook.tally.faults, hook.standing.quarantined)
            for (policy, name), hook in self._hooks.items()
            if hook.tally.faults
        )

    def ask(
        self,
        policy: str,
        hook: str,
        check: Callable[[Any], T | None],
        arguments: dict[str, Any],
    ) -> T | None:
        """What a policy answers, checked; None if it has no opinion, failed, or was passed over.

        `arguments` are the hook's, its StepView as `step` or its ServiceView as `service` among
        them. What is said of a step holds for whatever the latter stands for.
        """
        step: Occasion = arguments.get("step") or arguments["service"]
        if step.step_id != self._step_id:
            self._step_id, self._spent_s = step.step_id, 0.0
        asked = self._hooks.get((policy, hook)) or self._open(policy, hook)
        standing, tally = asked.standing, asked.tally
        limit_s = self._budget_s - self._spent_s
        if not standing.trusted:
            is_out = standing.is_out(step.step_id)
            if is_out or limit_s <= _LEAST_SHARE * self._budget_s:
                tally.passed_over += 1
                if not is_out:
                    self._log_lack_of_time(asked, limit_s)
                return None
        interrupted = False
        started_s = self._timer()
        self._blame.enter(asked.number, started_s)
        try:
            if standing.trusted:
                answer, error = self._attempt(asked, check, arguments)
            else:
                answer, error = self._guard.run(limit_s, self._attempt, asked, check, arguments)
        except Interrupted:
            answer, error, interrupted = None, None, True
        finally:
            self._blame.leave()
        elapsed_s = self._timer() - started_s
        tally.calls += 1
        tally.spent_s += elapsed_s
        if not standing.trusted:
            self._spent_s += elapsed_s
            if interrupted or elapsed_s > limit_s:
                return self._judge_overrun(
                    asked, answer, error, step, limit_s, elapsed_s, interrupted
                )
        if error is not None:
            self._count_fault(asked, error, step)
        return answer

    def use(self, profile: Profile) -> None:
        """Ask the policies of `profile` from now on, which was built to follow the one before.

        Policies that it took over keep their standing. All others begin anew, those that leave
        included; what was counted of them stays.
        """
        self._profile = profile
        changed = {*self._standings} - profile.kept
        if any(self._standings[policy].quarantined for policy in changed):
            self._has_news = True
        for policy in changed:
            del self._standings[policy]
        for hook in self._hooks.values():
            if hook.policy not in profile.kept:
                hook.standing, hook.told = self._standing_of(hook.policy), False

    def release(self, policy: str) -> None:
        """Ask a quarantined policy again, a fresh instance of it. Others are left as they are.

        Raises:
            KeyError: the profile has no such policy.
            PolicyUnusable: it cannot be built.
        """
        if policy not in self._profile.policies:
            raise KeyError(policy)
        standing = self._standings.get(policy)
        if standing is None or not standing.quarantined:
            return
        error = self._rebuild(policy)
        if error is not None:
            raise PolicyUnusable(f"policy {policy!r} cannot be built anew: {error}")
        standing.quarantined = standing.lacked_time = False
        standing.strikes.clear()
        for hook in self._hooks.values():
            if hook.policy == policy:
                hook.told = False
        self._has_news = True
        self._log.info("policy released", policy=policy)

    def _open(self, policy: str, name: str) -> _Hook:
        number = self._blame.number_of(policy, name)
        hook = self._hooks[policy, name] = _Hook(policy, name, number, self._standing_of(policy))
        return hook

    def _standing_of(self, policy: str) -> _Standing:
        standing = self._standings.get(policy)
        if standing is None:
            standing = self._standings[policy] = _Standing(trusted=policy in DEFAULTS.values())
        return standing

    def _attempt(
        self, asked: _Hook, check: Callable[[Any], T | None], arguments: dict[str, Any]
    ) -> tuple[T | None, str | None]:
        """The answer, or what was wrong. Nothing of the policy's own leaves the guarded call.

        What it returned or raised may have finalizers, or a `__repr__`, that never end.
        """
        try:
            if "costs" in arguments:
                # Its own, as an array's shape can be set; columns are new arrays when they are read
                arguments = {**arguments, "costs": replace(arguments["costs"])}
            answer = self._profile.caller(asked.name, asked.policy)(**arguments)
            return None if answer is None else check(answer), None
        except self._not_theirs:
            raise
        except BaseException as error:
            # The boundary between foreign code and the core: SystemExit too stays here, and, under
            # a guard, KeyboardInterrupt.
            return None, describe(error)

    def _judge_overrun(
        self,
        asked: _Hook,
        answer: T | None,
        error: str | None,
        step: Occasion,
        limit_s: float,
        elapsed_s: float,
        interrupted: bool,
    ) -> T | None:
        """A call took longer than was left. Had it the processor, or time enough without it?"""
        guilty = elapsed_s >= PATIENCE_S or self._guard.cpu_s() >= self._budget_s
        if guilty:
            took = "was interrupted after" if interrupted else "took"
            self._count_fault(asked, f"{took} {elapsed_s * 1e3:.1f} ms", step)
        elif interrupted:
            asked.tally.excused += 1
            asked.standing.failed_step = step.step_id
            self._log_lack_of_time(asked, limit_s)
        elif error is not None:
            self._count_fault(asked, error, step)
        if interrupted and not asked.standing.quarantined:  # else `release` replaces it
            self._replace(asked, step)
        return None if guilty or interrupted else answer

    def _log_lack_of_time(self, asked: _Hook, left_s: float) -> None:
        """Nobody's fault, and so in no metric; but a policy that is never asked decides nothing."""
        if not asked.standing.lacked_time:
            asked.standing.lacked_time = True
            left_ms = round(left_s * 1e3, 1)
            warn = self._log.warning
            warn("policy lacks time", hook=asked.name, policy=asked.policy, left_ms=left_ms)

    def _count_fault(self, asked: _Hook, error: str, step: Occasion) -> None:
        """Log the first fault of each policy in each hook; a broken one would fill the log.

        The first after a release is logged again.
        """
        self.faults += 1
        self._has_news = True
        tally, standing = asked.tally, asked.standing
        tally.faults += 1
        tally.last_error = error
        if not asked.told:
            asked.told = True
            warn = self._log.error if standing.trusted else self._log.warning
            warn("policy fault", hook=asked.name, policy=asked.policy, error=error)
        if standing.trusted:
            return
        standing.failed_step = step.step_id
        standing.strikes.append(step.now_s)
        if len(standing.strikes) == STRIKES and step.now_s - standing.strikes[0] <= WINDOW_S:
            self._quarantine(asked, error)

    def _replace(self, asked: _Hook, step: Occasion) -> None:
        """An interrupted instance may be half changed; nobody shall ask it again."""
        self._blame.enter(asked.number, self._timer())
        error = self._rebuild(asked.policy)
        self._blame.leave()
        if error is not None:
            self._count_fault(asked, f"cannot be built anew: {error}", step)
            self._quarantine(asked, error)

    def _rebuild(self, policy: str) -> str | None:
        """Put a fresh instance in the place of a policy's; what is wrong if that fails."""
        try:
            return self._guard.run(_REBUILD_S, self._try_to_rebuild, policy)
        except Interrupted:
            return f"takes longer than {_REBUILD_S * 1e3:.0f} ms"

    def _try_to_rebuild(self, policy: str) -> str | None:
        try:
            self._profile.rebuild(policy)
        except self._not_theirs:
            raise
        except BaseException as error:  # a constructor is foreign code too
            return describe(error)
        return None

    def _quarantine(self, asked: _Hook, error: str) -> None:
        if not asked.standing.quarantined:
            asked.standing.quarantined = True
            self._has_news = True
            tell = self._log.error
            tell("policy quarantined", policy=asked.policy, hook=asked.name, error=error)
