"""Prefills take no more of a step than those who decode can wait for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cadenza.policies.markers import hookimpl
from cadenza.policies.views import RequestColumns, StepBudget, StepView


class TpotTarget:
    """The largest step that keeps the strictest target of those who decode (Niyama, 2503.22562).

        tokens = (target - fixed_s - context_s * contexts) / token_s

    `target` is the least `tpot_target_s` of the running requests that decode, or the option
    `target_s` where that is less; `contexts` are the tokens that they have computed. All have just
    got a token, so that the whole target is theirs for the next one. Prefills have `least_prefill`
    tokens in any case, so that they end: with several long prompts a target may be missed.

    Niyama takes the least slack, of deadlines that requests have got ahead of; here nobody saves
    slack up. What attention over a long prompt adds to its later chunks is left out, and so is what
    a decode's context costs beside a prefill: the measured `token_s` has the mean of both in it.
    Nothing is limited while nobody decodes, nobody has a target, or nothing has been measured.

    It loses throughput: the weights are read in more steps, and who waits gets the first token
    later.
    """

    name = "tpot-target"

    @dataclass(frozen=True)
    class Options:
        """A target for those that have none, and what prefills get whatever the targets are."""

        target_s: float = np.inf
        least_prefill: int = 64

        def __post_init__(self) -> None:
            if not self.target_s >= 0.001:
                raise ValueError("target_s must be at least a millisecond")
            if self.least_prefill < 1:
                raise ValueError("least_prefill must be at least 1")

    def __init__(self, options: Options | None = None) -> None:
        self._options = options or self.Options()

    @hookimpl
    def plan_budget(
        self, running: RequestColumns, waiting: RequestColumns, step: StepView
    ) -> StepBudget | None:
        decodes = (running.remaining_prefill == 1) & ~running.parked
        target_s = running.tpot_target_s[decodes].min(initial=self._options.target_s)
        if not decodes.any() or target_s == np.inf or not step.token_s:
            return None
        read_s = step.context_s * float(running.computed_tokens[decodes].sum())
        tokens = (target_s - step.fixed_s - read_s) / step.token_s
        least = int(np.count_nonzero(decodes)) + self._options.least_prefill
        return StepBudget(max(least, int(min(tokens, step.token_budget))))
