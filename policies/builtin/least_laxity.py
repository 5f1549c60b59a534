"""Who can least afford to wait goes first."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cadenza.policies.deadlines import due_s, feasible_first, prefill_s
from cadenza.policies.markers import hookimpl
from cadenza.policies.views import FloatArray, RequestColumns, StepView


class LeastLaxity:
    """Admit by laxity: the time that a request could still wait and be in time.

        laxity = min(due of the next token - now - time to prefill,
                     deadline - now - time to prefill - outputs yet to come * mean step)

    in steps of `quantum_s`, within which requests keep their order of arrival: laxities change with
    time, and an order by their last digits would change with them (the hysteresis that least laxity
    first needs against thrashing). Outputs to come are known only as `predicted_tokens`, and count
    as none without them. Requests that would be late all the same, and those without targets, come
    behind, by arrival, as in `edf`.

    It loses where its estimates are wrong: costs of tokens and steps are means of late, and a
    request that shares its steps with many others takes longer.
    """

    name = "least-laxity"

    @dataclass(frozen=True)
    class Options:
        """`quantum_s`: differences of laxity, in seconds, that are none."""

        quantum_s: float = 0.05

        def __post_init__(self) -> None:
            if not 1e-3 <= self.quantum_s < np.inf:
                raise ValueError("quantum_s must be finite and at least 0.001 (a millisecond)")

    def __init__(self, options: Options | None = None) -> None:
        self._quantum_s = (options or self.Options()).quantum_s

    @hookimpl
    def order_admissions(self, waiting: RequestColumns, step: StepView) -> FloatArray:
        ready_s = step.now_s + prefill_s(waiting, step)
        predicted = np.minimum(waiting.predicted_tokens, waiting.max_tokens)
        output_s = np.maximum(predicted - waiting.generated_tokens, 0) * step.step_s
        laxity = np.minimum(due_s(waiting) - ready_s, waiting.deadline_s - ready_s - output_s)
        can = (laxity >= 0) & (laxity < np.inf)
        return feasible_first(np.floor(laxity / self._quantum_s), can, waiting)
