"""Calls hooks, and sees to it that a policy's failure costs that policy the decision, nobody else.

A policy fails in a step when it raises, answers wrongly, or overruns. It is not asked again in that
step; the default decides. After STRIKES failures within WINDOW_S it is quarantined, all its hooks
together, until `release`. All policies share one time budget a step; once little of it is left,
those not asked yet are passed over, as an interrupted call costs its policy what it has learned.

One that was interrupted rests, so that no step pays for more than one overrun of it, and is built
anew in the budget of the step in which it is next asked.

The default policies are trusted: they are what decides when others fail, so they have no time limit
and are never passed over. One that raises is counted and logged as an error, and has no opinion.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import structlog
from structlog.typing import FilteringBoundLogger

from cadenza.policies.blame import SIZE, Blame
from cadenza.policies.errors import describe, trace
from cadenza.policies.hook_guard import (
    PATIENCE_S,
    Disarmed,
    HookGuard,
    Interrupted,
    NoGuard,
    forget_frames,
)
from cadenza.policies.ledger import Ledger, When
from cadenza.policies.profile import Profile
from cadenza.policies.standing import (
    STRIKES,
    WINDOW_S,
    CountedFaults,
    CountedUse,
    Fault,
    FaultCount,
    Hook,
    Standing,
    Tally,
    Unanswered,
)
from cadenza.policies.views import Occasion

__all__ = [
    "BUDGET_S",
    "STRIKES",
    "WINDOW_S",
    "FaultCount",
    "PolicyRunner",
    "PolicyUnusable",
    "Tally",
]

BUDGET_S = 0.010  # of all policies together, in a step

_LEAST_SHARE = 0.2  # of the budget; who would have less is not asked
_CONSTRUCTOR = "__init__"  # for the blame
_RELEASE_S = 0.050  # for building an instance anew when somebody waits for that
_LONG_S = 1e-4  # what is worth to ask how much of it was waiting
_DISARMED = Fault("took away the signal or the timer that ends calls")
_BUSY, _OTHERS = "the machine was busy", "others had spent the time"

T = TypeVar("T")

_log: FilteringBoundLogger = structlog.get_logger(__name__)


class PolicyUnusable(Exception):
    """A policy cannot be built anew; it stays in quarantine."""


class _Call(NamedTuple):
    """One that took long. Times in seconds."""

    limit_s: float  # what was left of the budget
    before_s: float  # that the policy had spent of it
    elapsed_s: float
    own_s: float  # of these, what it did not certainly wait to be run
    interrupted: str | None = None  # where it was, perhaps unknown; None: it ended by itself


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
        refill: float | None = None,
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
            refill: how much of the budget comes back in each second that goes by, as a share of it;
                None: each step has a whole one.
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
        self._least_s = _LEAST_SHARE * budget_s
        self._refill = refill
        self._log = log
        self._ledger = Ledger(self._blame, log, timer)
        self._when = When(-1, 0.0)
        self._spent_s = 0.0  # of the budget, in this step

    @property
    def faults(self) -> int:
        """Of all policies."""
        return self._ledger.faults

    @property
    def tallies(self) -> Mapping[tuple[str, str], Tally]:
        """By policy and hook, for those that were asked at least once."""
        return self._ledger.tallies

    @property
    def quarantined(self) -> tuple[str, ...]:
        """The policies that are not asked."""
        return self._ledger.quarantined

    def num_unanswered(self, policy: str, hook: str) -> int:
        """How often a policy was to be asked and gave no answer that counts."""
        return self._ledger.num_unanswered(policy, hook)

    def unanswered(self) -> tuple[Unanswered, ...]:
        """Every hook that ever gave no answer that counts."""
        return self._ledger.unanswered()

    def take_news(self) -> tuple[FaultCount, ...]:
        """Every hook that ever failed, if that or a quarantine has changed since the last call."""
        return self._ledger.take_news()

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
        step_id, now_s = step.step_id, step.now_s  # a policy may find a way to change the view
        if step_id != self._when.step_id:
            self._begin(When(step_id, now_s))
        asked = self._ledger.hooks.get((policy, hook)) or self._ledger.open(policy, hook)
        standing, tally = asked.standing, asked.tally
        limit_s = self._budget_s - self._spent_s
        if not standing.trusted:
            is_out = standing.is_out(step_id, now_s)
            if is_out or standing.is_spoilt or limit_s <= self._least_s:
                if is_out or not self._is_ready(asked):
                    tally.passed_over += 1
                    return None
                limit_s = self._budget_s - self._spent_s
        interrupted: str | None = None  # where it was
        started_s = self._timer()
        self._blame.enter(asked.number, started_s)
        try:
            if standing.trusted:
                answer, fault = self._attempt(asked, check, arguments)
            else:
                answer, fault = self._guard.run(limit_s, self._attempt, asked, check, arguments)
        except Interrupted as interruption:
            answer, fault, interrupted = None, None, interruption.place
        except Disarmed:
            answer, fault = None, _DISARMED
        finally:
            self._blame.leave()
        elapsed_s = self._timer() - started_s
        tally.calls += 1
        if standing.trusted:
            tally.spent_s += elapsed_s
        else:
            before_s = standing.spent_s
            own_s = self._spend(standing, elapsed_s)
            tally.spent_s += own_s
            if interrupted is not None or elapsed_s > limit_s:
                call = _Call(limit_s, before_s, elapsed_s, own_s, interrupted)
                return self._judge_overrun(asked, answer, fault, call)
            asked.was_excused = False
        if fault is not None:
            self._ledger.count_fault(asked, self._when, fault)
        return answer

    def use(self, profile: Profile) -> None:
        """Ask the policies of `profile` from now on, which was built to follow the one before.

        Policies that it took over keep their standing. All others begin anew, those that leave
        included; what was counted of them stays.
        """
        self._profile = profile
        self._ledger.keep(profile.kept)

    def restore(self, faults: Iterable[CountedFaults], uses: Iterable[CountedUse]) -> None:
        """Go on from what was counted by another runner, which is gone; its quarantines stay."""
        self._ledger.restore(faults, uses)

    def release(self, policy: str) -> None:
        """Ask a quarantined policy again, a fresh instance of it. Others are left as they are.

        Raises:
            KeyError: the profile has no such policy.
            PolicyUnusable: it cannot be built.
        """
        if policy not in self._profile.policies:
            raise KeyError(policy)
        if policy not in self.quarantined:
            return
        fault = self._rebuild(policy, _RELEASE_S)
        if fault is not None:
            raise PolicyUnusable(f"policy {policy!r} cannot be built anew: {fault.text}")
        self._ledger.release(policy)

    def _begin(self, when: When) -> None:
        back_s = self._spent_s
        if self._refill is not None:
            back_s = min(self._spent_s, self._refill * max(when.now_s - self._when.now_s, 0.0))
        self._when = when
        if back_s > 0.0:
            stays = 1.0 - back_s / self._spent_s
            for standing in self._ledger.standings.values():
                standing.spent_s *= stays
        self._spent_s -= back_s

    def _spend(self, standing: Standing, elapsed_s: float) -> float:
        """Charge the latest guarded call, and say with how much: not with what it waited."""
        own_s = elapsed_s if elapsed_s < _LONG_S else self._guard.own_s(elapsed_s)
        self._spent_s += own_s
        standing.spent_s += own_s
        return own_s

    def _attempt(
        self, asked: Hook, check: Callable[[Any], T | None], arguments: dict[str, Any]
    ) -> tuple[T | None, Fault | None]:
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
            told = self._fault(error, is_wanted=not asked.told)
            forget_frames(error)
            return None, told

    def _fault(self, error: BaseException, *, is_wanted: bool) -> Fault:
        """What foreign code raised; where it came through is told if somebody looks for it."""
        is_wanted = is_wanted and (
            self._profile.is_traced or self._log.is_enabled_for(logging.DEBUG)
        )
        return Fault(describe(error), trace(error) if is_wanted else "")

    def _is_ready(self, asked: Hook) -> bool:
        """Whether there is time to ask a policy, and to build it anew before if need be."""
        if asked.standing.is_spoilt and self._has_time(asked):
            self._replace(asked)
            if asked.standing.is_spoilt:
                return False
        return self._has_time(asked)

    def _has_time(self, asked: Hook) -> bool:
        left_s = self._budget_s - self._spent_s
        if left_s > self._least_s:
            return True
        self._ledger.lack_time(asked, left_s)
        return False

    def _judge_overrun(
        self, asked: Hook, answer: T | None, fault: Fault | None, call: _Call
    ) -> T | None:
        """A call took longer than was left."""
        interrupted = call.interrupted is not None
        excuse = self._excuse(asked, call)
        if excuse is None:
            self._ledger.count_fault(asked, self._when, Fault(self._told(call)))
        elif interrupted:
            self._ledger.excuse(asked, self._when, self._told(call), excuse)
        elif fault is not None:
            self._ledger.count_fault(asked, self._when, fault)
        if interrupted:  # it may be half changed; nobody shall ask it again
            asked.standing.is_spoilt = True
        if interrupted or excuse is None:
            asked.standing.rest(self._when.now_s)
            return None
        return answer

    def _told(self, call: _Call) -> str:
        took = f"{call.elapsed_s * 1e3:.1f} ms"
        if call.interrupted is None:
            took = f"took {took}"
        else:
            took = f"was interrupted after {took}{_at(call.interrupted)}"
        occasion = "a step's" if self._refill is None else "all arrivals'"
        had = f"{occasion} policies have {self._budget_s * 1e3:g} ms"
        if call.limit_s < 0.95 * self._budget_s:
            had = f"{had}, of which {call.limit_s * 1e3:.1f} were left"
        return f"{took}; {had}"

    def _excuse(self, asked: Hook, call: _Call) -> str | None:
        """None if it had the processor, or slept, or time enough without either; else what it was.

        A busy machine is no fault. Where nobody knows whether it was that, one that had all of the
        time, and took too long twice running, is not excused again. What a policy has spent of the
        budget before, in whatever hook, others have not spent.
        """
        if call.own_s < min(call.limit_s, call.elapsed_s):
            return _BUSY
        taken_s = self._guard.taken_s()
        if call.elapsed_s >= PATIENCE_S or taken_s >= self._budget_s:
            return None
        if call.limit_s + call.before_s < self._budget_s - self._least_s:
            return _OTHERS
        if taken_s >= call.limit_s:
            return None
        again, asked.was_excused = asked.was_excused, True
        return None if again else _BUSY

    def _replace(self, asked: Hook) -> None:
        """Build a spoilt instance anew, in what is left of the budget; else it rests again."""
        limit_s, before_s = self._budget_s - self._spent_s, asked.standing.spent_s
        started_s = self._timer()
        fault = self._rebuild(asked.policy, limit_s)
        elapsed_s = self._timer() - started_s
        own_s = self._spend(asked.standing, elapsed_s)
        if fault is None:
            asked.standing.is_spoilt = False
            return
        asked.standing.rest(self._when.now_s)
        fault = fault._replace(text=f"cannot be built anew: {fault.text}")
        excuse = None
        if elapsed_s > limit_s:
            excuse = self._excuse(asked, _Call(limit_s, before_s, elapsed_s, own_s))
        if excuse is not None:
            self._ledger.excuse(asked, self._when, fault.text, excuse)
        else:
            self._ledger.count_fault(asked, self._when, fault)

    def _rebuild(self, policy: str, limit_s: float) -> Fault | None:
        """Put a fresh instance in the place of a policy's; what is wrong if that fails."""
        self._blame.enter(self._blame.number_of(policy, _CONSTRUCTOR), self._timer())
        try:
            return self._guard.run(limit_s, self._try_to_rebuild, policy)
        except Interrupted as error:
            return Fault(f"takes longer than {limit_s * 1e3:.0f} ms{_at(error.place)}")
        except Disarmed:
            return _DISARMED
        finally:
            self._blame.leave()

    def _try_to_rebuild(self, policy: str) -> Fault | None:
        try:
            self._profile.rebuild(policy)
        except self._not_theirs:
            raise
        except BaseException as error:  # a constructor is foreign code too
            told = self._fault(error, is_wanted=True)
            forget_frames(error)
            return told
        return None


def _at(place: str) -> str:
    return f" at {place}" if place else ""
