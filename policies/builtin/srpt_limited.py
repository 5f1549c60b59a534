"""The shortest predicted remainder first; it may push out who is not far yet."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cadenza.policies.lengths import LengthPredictor
from cadenza.policies.markers import hookimpl
from cadenza.policies.views import FloatArray, RequestColumns, StepView


class SrptLimited:
    """Shortest predicted remaining time with limited preemption (TRAIL, arXiv 2410.01035).

        score = steps to come = remaining_prefill / token_budget + predicted output - generated

    As a displacement policy too, a waiting request may push out one that runs and has generated
    less than `share * predicted output`, if that one's steps to come are more than `1 + hysteresis`
    times its own: `share` 1 is SRPT, 0 never preempts. The paper's best share was 0.8. Who is
    pushed out has the more to come, so that two never push each other out in turn while their
    predictions stand.

    Outputs are as long as `predicted_tokens` says, where whoever sent the request or a policy for
    `predict_lengths` has said it; otherwise predicted online from those of the same kind (tenant,
    size of prompt, `max_tokens`). The paper probes the model's layers. It loses
    the tail: long requests wait until a guard helps them, so never use it without one; and where
    lengths cannot be told from kinds, it is no better than arrival order. Mean times gain the most
    from heavy-tailed outputs, whose tails lose the most.
    """

    name = "srpt-limited"

    @dataclass(frozen=True)
    class Options:
        """How far a request can be pushed out, and by how much shorter ones."""

        share: float = 0.8
        hysteresis: float = 0.25

        def __post_init__(self) -> None:
            if not 0 <= self.share <= 1:
                raise ValueError("share must be between 0 and 1")
            if not 0 <= self.hysteresis < np.inf:
                raise ValueError("hysteresis must be finite and not negative")

    def __init__(self, options: Options | None = None) -> None:
        self._options = options or self.Options()
        self._lengths = LengthPredictor()

    @hookimpl
    def on_finished(self, finished: RequestColumns, step: StepView) -> None:
        self._lengths.learn(finished)

    @hookimpl
    def order_admissions(self, waiting: RequestColumns, step: StepView) -> FloatArray:
        return self._steps(waiting, step)

    @hookimpl
    def allow_displacement(
        self, candidate: RequestColumns, running: RequestColumns, step: StepView
    ) -> FloatArray:
        limit = np.floor(self._options.share * self._lengths.total(running))
        margins = self._steps(running, step)
        margins -= (1 + self._options.hysteresis) * self._steps(candidate, step)[0]
        return np.where(running.generated_tokens < limit, margins, 0.0)

    def _steps(self, requests: RequestColumns, step: StepView) -> FloatArray:
        """Steps that each would take if it could have them to itself."""
        prefill = requests.remaining_prefill / max(1, step.token_budget)
        steps: FloatArray = prefill + self._lengths.remaining(requests)
        return steps
