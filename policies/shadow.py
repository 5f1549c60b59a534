"""A second profile beside the live one: asked the same, compared, and never obeyed.

Its policies get the live ones' views, a runner of their own, and so a time budget and faults of
their own. They are told what really happened. A service without a shadow has plain `Decisions` and
`FrontDecisions`, and pays nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from cadenza.policies.arrivals import ArrivalColumns, ServiceView
from cadenza.policies.decisions import Decisions, Kind
from cadenza.policies.differences import COMPARISONS, FRONT_COMPARISONS, Comparison
from cadenza.policies.front_decisions import FrontDecisions, Refused
from cadenza.policies.profile import Profile
from cadenza.policies.runner import PolicyRunner
from cadenza.policies.views import BoolArray, FloatArray, RequestColumns, StepView

SHADOW_BUDGET_S = 0.005  # of all policies of the shadow together, in a step or at an arrival

T = TypeVar("T")


@dataclass(slots=True)
class Compared:
    """One hook's answers, live and shadow, since either profile was last changed."""

    hook: str
    figure: str  # what `mean` is the mean of
    asked: int = 0
    unanswered: int = 0  # the shadow's policy failed or was passed over; not compared
    differed: int = 0
    first_differed: int = 0  # another request would have come first
    total: float = 0.0

    @property
    def mean(self) -> float:
        """Of the figure, over all pairs of answers, equal ones included; 0 without any."""
        return self.total / max(self.asked - self.unanswered, 1)


class Shadow:
    """The profile that is asked beside the live one, and who asks it."""

    def __init__(self, profile: Profile, runner: PolicyRunner) -> None:
        self.profile = profile
        self.runner = runner
        self.decisions = Decisions(profile, runner)
        self.front_decisions = FrontDecisions(profile, runner)


class _Comparing:
    """Counts how a shadow's answers differ."""

    def __init__(self, shadow: Shadow, comparisons: Mapping[str, Comparison]) -> None:
        self._shadow = shadow
        self._comparisons = comparisons
        self._compared = {hook: Compared(hook, each.figure) for hook, each in comparisons.items()}

    @property
    def all(self) -> tuple[Compared, ...]:
        """Of every decision, also of those that nobody has asked for."""
        return tuple(self._compared.values())

    def compare(
        self, hook: str, answer: T, ask: Callable[[], T], arguments: dict[str, Any]
    ) -> None:
        """Ask the shadow as well, by `ask`."""
        compared = self._compared[hook]
        compared.asked += 1
        before = self._num_unanswered(hook)
        other = ask()
        if self._num_unanswered(hook) > before:
            compared.unanswered += 1
            return
        difference = self._comparisons[hook].compare(answer, other, arguments)
        compared.differed += difference.differs
        compared.first_differed += difference.first_differs
        compared.total += difference.figure

    def _num_unanswered(self, hook: str) -> int:
        profile, runner = self._shadow.profile, self._shadow.runner
        return sum(runner.num_unanswered(policy, hook) for policy in profile.deciding(hook))


class ShadowedDecisions(Decisions):
    """Decides as `Decisions` does, and asks and tells a shadow everything as well.

    Displacement is asked of the shadow only where the live profile may displace: otherwise the
    scheduler has no such question. A budget, lengths and an order of eviction are asked for if
    either of them has a policy for it.
    """

    def __init__(
        self,
        profile: Profile,
        runner: PolicyRunner,
        shadow: Shadow,
        newcomers: Collection[str] | None = None,
    ) -> None:
        super().__init__(profile, runner, newcomers)
        self._other = shadow.decisions
        self._comparing = _Comparing(shadow, COMPARISONS)

    @property
    def comparison(self) -> tuple[Compared, ...]:
        """Of every decision, also of those that nobody has asked for."""
        return self._comparing.all

    def guard_starvation(self, waiting: RequestColumns, step: StepView) -> BoolArray:
        starving = super().guard_starvation(waiting, step)
        self._comparing.compare(
            "guard_starvation",
            starving,
            lambda: self._other.guard_starvation(waiting, step),
            {"waiting": waiting, "step": step},
        )
        return starving

    @property
    def predicts_lengths(self) -> bool:
        return super().predicts_lengths or self._other.predicts_lengths

    @property
    def ranks_blocks(self) -> bool:
        return super().ranks_blocks or self._other.ranks_blocks

    @property
    def plans_budget(self) -> bool:
        return super().plans_budget or self._other.plans_budget

    def observes(self, hook: str) -> bool:
        return super().observes(hook) or self._other.observes(hook)

    def introduce(self, everybody: RequestColumns, arrived: RequestColumns, step: StepView) -> None:
        super().introduce(everybody, arrived, step)
        self._other.introduce(everybody, arrived, step)

    def _tell(self, hook: str, arguments: dict[str, Any]) -> None:
        super()._tell(hook, arguments)
        self._other._tell(hook, arguments)

    def _ask(self, hook: str, kind: Kind[T], size: int, arguments: dict[str, Any]) -> T:
        answer = super()._ask(hook, kind, size, arguments)
        self._comparing.compare(
            hook, answer, lambda: self._other._ask(hook, kind, size, arguments), arguments
        )
        return answer


class ShadowedFrontDecisions(FrontDecisions):
    """The same where requests arrive: the shadow is asked about whatever its policies may judge.

    Its gates are asked about calls that the live ones refuse, too.
    """

    def __init__(self, profile: Profile, runner: PolicyRunner, shadow: Shadow) -> None:
        super().__init__(profile, runner)
        self._other = shadow.front_decisions
        self._comparing = _Comparing(shadow, FRONT_COMPARISONS)
        self.may_refuse |= self._other.may_refuse
        self.may_shed |= self._other.may_shed

    @property
    def comparison(self) -> tuple[Compared, ...]:
        """Of both decisions, also if nobody has asked for them."""
        return self._comparing.all

    def gate_arrivals(self, arrivals: ArrivalColumns, service: ServiceView) -> Refused | None:
        refused = super().gate_arrivals(arrivals, service)
        self._comparing.compare(
            "gate_arrivals", refused, lambda: self._other.gate_arrivals(arrivals, service), {}
        )
        return refused

    def shed_load(self, waiting: ArrivalColumns, service: ServiceView) -> FloatArray:
        scores = super().shed_load(waiting, service)
        self._comparing.compare(
            "shed_load", scores, lambda: self._other.shed_load(waiting, service), {}
        )
        return scores
