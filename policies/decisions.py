"""The typed face of the hooks: what each is given, and what its answer must be.

Every answer is checked before the core sees it. A policy that fails costs itself the decision, not
the service: the default decides (`policies.runner`). Should the default fail too, zeros do, which
no hook's reader can be hurt by: all are equal, nothing is kept free, nobody is displaced, none is
swapped. For a step's tokens it is what is configured.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from cadenza.policies.builtin import DEFAULTS
from cadenza.policies.cached_blocks import CachedBlocks
from cadenza.policies.profile import Profile
from cadenza.policies.runner import PolicyRunner
from cadenza.policies.views import (
    BoolArray,
    FloatArray,
    IntArray,
    PreemptionCosts,
    RequestColumns,
    StepBudget,
    StepView,
)

T = TypeVar("T")

_WHOLE = frozenset(np.dtype(code).type for code in np.typecodes["AllInteger"])


class AnswerError(Exception):
    """A hook answered with something that cannot be used; the message says what is wrong."""


class Kind(NamedTuple, Generic[T]):
    """What is wanted, of a size: its length, or for a budget what is configured."""

    check: Callable[[int, Any], T]  # raises, or returns the answer as it is used
    nothing: Callable[[int], T]  # what does if even the default has no answer


class Decisions:
    """Asks a profile's policies, one method a hook."""

    def __init__(
        self,
        profile: Profile,
        runner: PolicyRunner | None = None,
        newcomers: Collection[str] | None = None,
    ) -> None:
        """Ask the policies of `profile`.

        Args:
            profile: whose policies are asked.
            runner: through whom; None: one of its own, without time limits.
            newcomers: policies that have not been told who is here; None: all of them.
        """
        self._profile = profile
        self._runner = runner or PolicyRunner(profile)
        # Whether only requests of the same tenant overtake each other, as the order sees it
        self.overtakes_within_tenant = profile.overtakes_within_tenant
        self.newcomers = frozenset(profile.policies if newcomers is None else newcomers)
        self._asked = {
            hook: tuple(dict.fromkeys((chosen, DEFAULTS[hook])))
            for hook, chosen in profile.names.items()
        }

    @property
    def faults(self) -> int:
        """Failures of policies so far, the defaults' included."""
        return self._runner.faults

    @property
    def predicts_lengths(self) -> bool:
        """False where the default, nobody, decides: then `predict_lengths` need not be asked."""
        return self._chose_another("predict_lengths")

    @property
    def predicts_anew(self) -> bool:
        """Whether the policy that predicts has not been asked about those that are here."""
        return self._asked["predict_lengths"][0] in self.newcomers

    def predict_lengths(self, arrived: RequestColumns, step: StepView) -> FloatArray:
        """float64 [arrived], output tokens in all; 0 where nobody predicts."""
        arguments = {"arrived": arrived, "step": step}
        return self._ask("predict_lengths", _LENGTHS, len(arrived), arguments)

    @property
    def plans_budget(self) -> bool:
        """False where the default decides: then `plan_budget` need not be asked."""
        return self._chose_another("plan_budget")

    def plan_budget(
        self, running: RequestColumns, waiting: RequestColumns, step: StepView
    ) -> StepBudget:
        """The tokens of this step, at most as many as `step` has, and of one prompt in it."""
        arguments = {"running": running, "waiting": waiting, "step": step}
        return self._ask("plan_budget", _BUDGET, step.token_budget, arguments)

    def order_admissions(self, waiting: RequestColumns, step: StepView) -> FloatArray:
        """float64 [waiting], lowest first; +inf stays out of this step."""
        return self._ask(
            "order_admissions", _SCORES, len(waiting), {"waiting": waiting, "step": step}
        )

    def reserve_blocks(
        self, running: RequestColumns, candidates: RequestColumns, step: StepView
    ) -> IntArray:
        """int64 [candidates + 1], blocks to keep free after the first k candidates entered."""
        arguments = {"running": running, "candidates": candidates, "step": step}
        return self._ask("reserve_blocks", _COUNTS, len(candidates) + 1, arguments)

    def select_victims(self, running: RequestColumns, step: StepView) -> FloatArray:
        """float64 [running], lowest is preempted first."""
        return self._ask(
            "select_victims", _SCORES, len(running), {"running": running, "step": step}
        )

    @property
    def may_displace(self) -> bool:
        """False where the default, nobody, decides: then `allow_displacement` need not be asked."""
        return self._chose_another("allow_displacement")

    def allow_displacement(
        self, candidate: RequestColumns, running: RequestColumns, step: StepView
    ) -> FloatArray:
        """float64 [running], above 0 allows it. Both infinities are answers: surely, and never."""
        arguments = {"candidate": candidate, "running": running, "step": step}
        return self._ask("allow_displacement", _MARGINS, len(running), arguments)

    def choose_preemption(
        self, victims: RequestColumns, costs: PreemptionCosts, step: StepView
    ) -> BoolArray:
        """bool [victims], True wants a swap."""
        arguments = {"victims": victims, "costs": costs, "step": step}
        return self._ask("choose_preemption", _MASK, len(victims), arguments)

    @property
    def ranks_blocks(self) -> bool:
        """False where the default decides: then `rank_cached_blocks` need not be asked."""
        return self._chose_another("rank_cached_blocks")

    def rank_cached_blocks(self, blocks: CachedBlocks, step: StepView) -> FloatArray:
        """float64 [blocks], lowest is evicted first."""
        arguments = {"blocks": blocks, "step": step}
        return self._ask("rank_cached_blocks", _SCORES, len(blocks), arguments)

    def guard_starvation(self, waiting: RequestColumns, step: StepView) -> BoolArray:
        """bool [waiting], True where any guard sees starvation."""
        starving: BoolArray | None = None
        check = partial(_check_alone, len(waiting))
        arguments = {"waiting": waiting, "step": step}
        for guard in self._profile.guards:
            answer = self._runner.ask(guard, "guard_starvation", check, arguments)
            if answer is not None:
                starving = answer if starving is None else starving | answer
        return np.zeros(len(waiting), dtype=bool) if starving is None else starving

    def observes(self, hook: str) -> bool:
        """Whether anybody listens to an observer hook."""
        return bool(self._profile.observers(hook))

    def on_arrived(self, arrived: RequestColumns, step: StepView) -> None:
        """Tell every policy that listens who has come."""
        self._tell("on_arrived", {"arrived": arrived, "step": step})

    def introduce(self, everybody: RequestColumns, arrived: RequestColumns, step: StepView) -> None:
        """Tell newcomers who is here, and the others who has come, through `on_arrived`."""
        for policy in self._profile.observers("on_arrived"):
            news = everybody if policy in self.newcomers else arrived
            if len(news):
                arguments = {"arrived": news, "step": step}
                self._runner.ask(policy, "on_arrived", _ignore, arguments)
        self.newcomers = frozenset()

    def on_admitted(self, admitted: RequestColumns, step: StepView) -> None:
        """Tell every policy that listens who got a seat."""
        self._tell("on_admitted", {"admitted": admitted, "step": step})

    def on_preempted(self, preempted: RequestColumns, step: StepView) -> None:
        """Tell every policy that listens who lost the seat."""
        self._tell("on_preempted", {"preempted": preempted, "step": step})

    def on_resumed(self, resumed: RequestColumns, step: StepView) -> None:
        """Tell every policy that listens who came back from a preemption."""
        self._tell("on_resumed", {"resumed": resumed, "step": step})

    def on_generated(self, generated: RequestColumns, step: StepView) -> None:
        """Tell every policy that listens who got a token."""
        self._tell("on_generated", {"generated": generated, "step": step})

    @property
    def observes_finished(self) -> bool:
        """Whether anybody listens to `on_finished`."""
        return self.observes("on_finished")

    def on_finished(self, finished: RequestColumns, step: StepView) -> None:
        """Tell every policy that listens who ended."""
        self._tell("on_finished", {"finished": finished, "step": step})

    def _tell(self, hook: str, arguments: dict[str, Any]) -> None:
        """One by one, so that a fault of one costs only itself."""
        for policy in self._profile.observers(hook):
            self._runner.ask(policy, hook, _ignore, arguments)

    def _chose_another(self, hook: str) -> bool:
        """Whether somebody else than the default decides."""
        return self._profile.names[hook] != DEFAULTS[hook]

    def _ask(self, hook: str, kind: Kind[T], size: int, arguments: dict[str, Any]) -> T:
        """What the chosen policy answers, or else the default, or else what does for nothing."""
        check = partial(kind.check, size)
        for policy in self._asked[hook]:
            answer = self._runner.ask(policy, hook, check, arguments)
            if answer is not None:
                return answer
        return kind.nothing(size)


def _array(answer: Any, length: int, kinds: str, what: str) -> npt.NDArray[Any]:
    # Subclasses compute otherwise: a masked array would hide requests from the core for ever.
    if type(answer) is not np.ndarray:
        raise AnswerError(f"expected a NumPy array of {what}, got {type(answer).__name__}")
    if answer.shape != (length,):
        raise AnswerError(f"expected shape ({length},), got {answer.shape}")
    if answer.dtype.kind not in kinds:
        raise AnswerError(f"expected {what}{_as(kinds)}, got dtype {answer.dtype}")
    return answer


def _as(kinds: str) -> str:
    return " as floats or ints" if kinds == "fiu" else ""


def check_scores(length: int, answer: Any) -> FloatArray:
    """Raises AnswerError unless it is an array of so many scores."""
    scores = _array(answer, length, "fiu", "scores").astype(np.float64)
    if not scores.min(initial=np.inf) > -np.inf:  # the least of any and NaN is NaN
        raise AnswerError("scores must not be NaN or -inf")
    return scores


def _check_margins(length: int, answer: Any) -> FloatArray:
    margins = _array(answer, length, "fiu", "margins").astype(np.float64)
    if np.isnan(margins).any():
        raise AnswerError("margins must not be NaN")
    return margins


def _check_lengths(length: int, answer: Any) -> FloatArray:
    lengths = _array(answer, length, "fiu", "numbers of tokens").astype(np.float64)
    if not ((lengths >= 0) & (lengths < np.inf)).all():  # NaN is neither
        raise AnswerError("lengths must be finite and not negative")
    return lengths


def _check_counts(length: int, answer: Any) -> IntArray:
    counts = _array(answer, length, "iu", "whole numbers").astype(np.int64)
    if (counts < 0).any():
        raise AnswerError("counts must not be negative")
    return counts


def _check_mask(length: int, answer: Any) -> BoolArray:
    return _array(answer, length, "b", "booleans").copy()


def _check_alone(length: int, answers: Any) -> BoolArray | None:
    """For a union, whose answers pluggy puts in a list: here of one policy's answer, or empty."""
    if not answers:
        return None
    (answer,) = answers
    return _check_mask(length, answer)


def _check_budget(most: int, answer: Any) -> StepBudget:
    if type(answer) is not StepBudget:
        raise AnswerError(f"expected a StepBudget, got {type(answer).__name__}")
    tokens, chunk = _check_count("tokens", answer.tokens), answer.prefill_chunk
    if chunk is not None:
        chunk = min(_check_count("prefill_chunk", chunk), most)
    return StepBudget(min(tokens, most), chunk)


def _check_count(name: str, count: Any) -> int:
    # No subclass: what one does when it is compared is up to its author
    if type(count) is not int and type(count) not in _WHOLE:
        raise AnswerError(f"{name} must be a whole number, and is {type(count).__name__}")
    if count < 1:
        raise AnswerError(f"{name} must be at least 1, and is {count}")
    return int(count)


def _ignore(answer: Any) -> None:
    """What an observer returns means nothing."""


_SCORES: Kind[FloatArray] = Kind(check_scores, lambda size: np.zeros(size, np.float64))
_MARGINS: Kind[FloatArray] = Kind(_check_margins, lambda size: np.zeros(size, np.float64))
_LENGTHS: Kind[FloatArray] = Kind(_check_lengths, lambda size: np.zeros(size, np.float64))
_COUNTS: Kind[IntArray] = Kind(_check_counts, lambda size: np.zeros(size, np.int64))
_MASK: Kind[BoolArray] = Kind(_check_mask, lambda size: np.zeros(size, np.bool_))
_BUDGET = Kind(_check_budget, StepBudget)
