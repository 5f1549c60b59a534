"""What a policy would have decided in a recorded run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cadenza.policies.contract import OBSERVERS
from cadenza.policies.differences import COMPARISONS, Difference
from cadenza.policies.views import StepBudget
from cadenza.testing.recording import Answer, Asked
from cadenza.testing.trial import Subject, Trial, hook_guard


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """A recorded question, and what the policy says to it."""

    asked: Asked
    answer: Answer
    difference: Difference


@dataclass(slots=True)
class Replay:
    """All that a policy answered. What came of it is not known: the run went on as recorded."""

    answered: list[Answered] = field(default_factory=list)

    @property
    def differing(self) -> list[Answered]:
        """Where something else would have been done."""
        return [each for each in self.answered if each.difference.differs]

    def __str__(self) -> str:
        """A line a hook: how often it was asked, how often it differed, and first where."""
        hooks = dict.fromkeys(each.asked.hook for each in self.answered)
        return "\n".join(self._line(hook) for hook in hooks)

    def _line(self, hook: str) -> str:
        answered = [each for each in self.answered if each.asked.hook == hook]
        differing = [each for each in answered if each.difference.differs]
        line = f"{hook}: {len(differing)} of {len(answered)} answers differ"
        if not differing:
            return line
        first = differing[0]
        return (
            f"{line}; first in step {first.asked.step_id}, "
            f"{first.asked.policy} {_shown(first.asked.answer)}, now {_shown(first.answer)}"
        )


def replay(
    asked: Iterable[Asked], policy: type, options: Mapping[str, Any] | None = None
) -> Replay:
    """Ask a fresh instance what was asked, and tell it what was told, in the recorded order.

    Raises:
        Failure: a hook fails, or the class cannot be used.
    """
    subject, replayed = Subject(policy, options or {}), Replay()
    with hook_guard() as guard:
        trial = Trial(subject, guard)
        for each in asked:
            if each.hook not in subject.hooks:
                continue
            answer = trial.ask(each.hook, each.arguments)
            if each.hook not in OBSERVERS:
                difference = compare(each, answer)
                replayed.answered.append(Answered(asked=each, answer=answer, difference=difference))
    return replayed


def compare(asked: Asked, answer: Answer) -> Difference:
    """What would have been done otherwise had this been the answer."""
    return COMPARISONS[asked.hook].compare(asked.answer, answer, asked.arguments)


def _shown(answer: Answer | None) -> str:
    if isinstance(answer, StepBudget):
        return str(answer)
    return np.array2string(np.asarray(answer), threshold=8, precision=4, separator=", ")
