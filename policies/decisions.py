"""The typed face of the hooks, and the only code that calls them.

Every answer is checked before the core sees it. A policy that raises or answers wrongly costs
itself the decision, not the service: the default decides for this step and `faults` rises.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import structlog

from cadenza.policies.builtin import DEFAULTS
from cadenza.policies.profile import Profile
from cadenza.policies.views import (
    BoolArray,
    FloatArray,
    IntArray,
    PreemptionCosts,
    RequestColumns,
    StepView,
)

Check = Callable[[Any], npt.NDArray[Any]]
T = TypeVar("T")

_log = structlog.get_logger(__name__)


class AnswerError(Exception):
    """A hook answered with something that cannot be used; the message says what is wrong."""


class Decisions:
    """Asks a profile's policies, one method a hook."""

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self._faulty: set[tuple[str, str]] = set()
        self.faults = 0

    def order_admissions(self, waiting: RequestColumns, step: StepView) -> FloatArray:
        """float64 [waiting], lowest first; +inf stays out of this step."""
        return self._ask("order_admissions", _scores(len(waiting)), waiting=waiting, step=step)

    def reserve_blocks(
        self, running: RequestColumns, candidates: RequestColumns, step: StepView
    ) -> IntArray:
        """int64 [candidates + 1], blocks to keep free after the first k candidates entered."""
        check = _counts(len(candidates) + 1)
        return self._ask("reserve_blocks", check, running=running, candidates=candidates, step=step)

    def select_victims(self, running: RequestColumns, step: StepView) -> FloatArray:
        """float64 [running], lowest is preempted first."""
        return self._ask("select_victims", _scores(len(running)), running=running, step=step)

    @property
    def may_displace(self) -> bool:
        """False where the default, nobody, decides: then `allow_displacement` need not be asked."""
        hook = "allow_displacement"
        return self._profile.names[hook] != DEFAULTS[hook]

    def allow_displacement(
        self, candidate: RequestColumns, running: RequestColumns, step: StepView
    ) -> FloatArray:
        """float64 [running], above 0 allows it. Both infinities are answers: surely, and never."""
        return self._ask(
            "allow_displacement",
            _margins(len(running)),
            candidate=candidate,
            running=running,
            step=step,
        )

    def choose_preemption(
        self, victims: RequestColumns, costs: PreemptionCosts, step: StepView
    ) -> BoolArray:
        """bool [victims], True wants a swap."""
        check = _mask(len(victims))
        return self._ask("choose_preemption", check, victims=victims, costs=costs, step=step)

    def guard_starvation(self, waiting: RequestColumns, step: StepView) -> BoolArray:
        """bool [waiting], True where any guard sees starvation."""
        starving: BoolArray | None = None
        for guard in self._profile.guards:
            check = _alone(_mask(len(waiting)))
            answer = self._try(guard, "guard_starvation", check, waiting=waiting, step=step)
            if answer is not None:
                starving = answer if starving is None else starving | answer
        return np.zeros(len(waiting), dtype=bool) if starving is None else starving

    def observes(self, hook: str) -> bool:
        """Whether anybody listens to an observer hook."""
        return bool(self._profile.observers(hook))

    def on_admitted(self, admitted: RequestColumns, step: StepView) -> None:
        """Tell every policy that listens who got a seat."""
        for policy in self._profile.observers("on_admitted"):
            self._try(policy, "on_admitted", _ignored, admitted=admitted, step=step)

    def on_generated(self, generated: RequestColumns, step: StepView) -> None:
        """Tell every policy that listens who got a token."""
        for policy in self._profile.observers("on_generated"):
            self._try(policy, "on_generated", _ignored, generated=generated, step=step)

    @property
    def observes_finished(self) -> bool:
        """Whether anybody listens to `on_finished`."""
        return self.observes("on_finished")

    def on_finished(self, finished: RequestColumns, step: StepView) -> None:
        """Tell every policy that listens, one by one, so that a fault of one costs only itself."""
        for policy in self._profile.observers("on_finished"):
            self._try(policy, "on_finished", _ignored, finished=finished, step=step)

    def _ask(self, hook: str, check: Check, **arguments: Any) -> npt.NDArray[Any]:
        answer = self._try(self._profile.names[hook], hook, check, **arguments)
        if answer is None:
            return check(self._call(DEFAULTS[hook], hook, arguments))
        return answer

    def _try(
        self, policy: str, hook: str, check: Callable[[Any], T | None], **arguments: Any
    ) -> T | None:
        """What one policy answers; None if it has no opinion, or if it failed."""
        try:
            answer = self._call(policy, hook, arguments)
            return None if answer is None else check(answer)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            # The boundary between foreign code and the core: SystemExit too stays here.
            self._count_fault(policy, hook, error)
            return None

    def _call(self, policy: str, hook: str, arguments: dict[str, Any]) -> Any:
        """Call one policy with costs of its own, as an array's shape can be set by whoever has it.

        Columns are new arrays whenever they are read.
        """
        costs = arguments.get("costs")
        if costs is not None:
            arguments = {**arguments, "costs": replace(costs)}
        return self._profile.caller(hook, policy)(**arguments)

    def _count_fault(self, policy: str, hook: str, error: BaseException) -> None:
        """Log the first fault of each policy in each hook; a broken one would fill the log."""
        self.faults += 1
        if (policy, hook) not in self._faulty:
            self._faulty.add((policy, hook))
            _log.warning("policy fault", hook=hook, policy=policy, error=repr(error))


def _array(answer: Any, length: int, kinds: str, what: str) -> npt.NDArray[Any]:
    # Subclasses compute otherwise: a masked array would hide requests from the core for ever.
    if type(answer) is not np.ndarray:
        raise AnswerError(f"expected a NumPy array of {what}, got {type(answer).__name__}")
    if answer.shape != (length,):
        raise AnswerError(f"expected shape ({length},), got {answer.shape}")
    if answer.dtype.kind not in kinds:
        raise AnswerError(f"expected {what}, got dtype {answer.dtype}")
    return answer


def _scores(length: int) -> Check:
    def check(answer: Any) -> FloatArray:
        scores = _array(answer, length, "fiu", "scores").astype(np.float64)
        if not scores.min(initial=np.inf) > -np.inf:  # the least of any and NaN is NaN
            raise AnswerError("scores must not be NaN or -inf")
        return scores

    return check


def _margins(length: int) -> Check:
    def check(answer: Any) -> FloatArray:
        margins = _array(answer, length, "fiu", "margins").astype(np.float64)
        if np.isnan(margins).any():
            raise AnswerError("margins must not be NaN")
        return margins

    return check


def _counts(length: int) -> Check:
    def check(answer: Any) -> IntArray:
        counts = _array(answer, length, "iu", "whole numbers").astype(np.int64)
        if (counts < 0).any():
            raise AnswerError("counts must not be negative")
        return counts

    return check


def _mask(length: int) -> Check:
    def check(answer: Any) -> BoolArray:
        return _array(answer, length, "b", "booleans").copy()

    return check


def _alone(check: Check) -> Callable[[Any], npt.NDArray[Any] | None]:
    """For a union, whose answers pluggy puts in a list: here of one policy's answer, or empty."""

    def checked(answers: Any) -> npt.NDArray[Any] | None:
        if not answers:
            return None
        (answer,) = answers
        return check(answer)

    return checked


def _ignored(answer: Any) -> None:
    """What an observer returns means nothing."""
