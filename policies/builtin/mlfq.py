"""Who has had little comes before who has had much: queues by service, without predictions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cadenza.policies.markers import hookimpl
from cadenza.policies.views import FloatArray, IntArray, RequestColumns, StepView

_OUTPUT_WEIGHT = 2  # prompt tokens that a generated one counts as
_LEVELS = 32


class Mlfq:
    """Multi-level feedback queue in which long prompts skip the first queues (FastServe, NSDI'26).

    Queue p gives a quantum of `quantum * 2**p` tokens of service: a prompt's, and two for each
    token generated. A request joins the first queue p0 whose quantum covers its prefill, and sinks
    to the next whenever it has used up one:

        score = least p >= p0 with quantum * (2**(p + 1) - 2**p0) >= service

    By arrival within a queue. Whoever has waited for `promote_s` is in the first queue until it is
    admitted. As a displacement policy too, a request may push out those of later queues; promotions
    and what the cache holds do not count there, or two could push each other out for ever, while
    quanta that double let a request be pushed out only so often.

    FastServe measures service in time and swaps ahead of need; ours is in tokens, which need no
    model of speed, and moves nothing ahead. It loses against predictions that are right, since it
    finds out that a request is long by serving it; without displacement only victims and prompts
    differ in service, and it is close to arrival order.
    """

    name = "mlfq"

    @dataclass(frozen=True)
    class Options:
        """`quantum`: tokens of service in the first queue; `promote_s`: the longest wait."""

        quantum: int = 512
        promote_s: float = 3.0

        def __post_init__(self) -> None:
            if self.quantum < 1:
                raise ValueError("quantum must be at least 1")
            if not self.promote_s >= 1e-3:
                raise ValueError("promote_s must be at least 0.001 (a millisecond)")

    def __init__(self, options: Options | None = None) -> None:
        self._options = options or self.Options()

    @hookimpl
    def order_admissions(self, waiting: RequestColumns, step: StepView) -> FloatArray:
        promoted = step.now_s - waiting.waits_since_s >= self._options.promote_s
        new = (waiting.generated_tokens == 0) & (waiting.admission < 0)
        prefill = np.where(new, waiting.remaining_prefill, waiting.prompt_tokens)
        return np.where(promoted, 0.0, self._queues(waiting, prefill))

    @hookimpl
    def allow_displacement(
        self, candidate: RequestColumns, running: RequestColumns, step: StepView
    ) -> FloatArray:
        # By whole prompts, since what the cache held is known of those who wait only
        margins: FloatArray = self._queues(running, running.prompt_tokens).astype(np.float64)
        margins -= self._queues(candidate, candidate.prompt_tokens)[0]
        return margins

    def _queues(self, requests: RequestColumns, prefill: IntArray) -> IntArray:
        """The queue of each request, of which `prefill` is computed; 0 is the first."""
        quanta = prefill / self._options.quantum
        join = np.ceil(np.log2(np.maximum(quanta, 1)))
        used = quanta + _OUTPUT_WEIGHT / self._options.quantum * requests.generated_tokens
        sunk = np.ceil(np.log2(used + 2**join)) - 1
        queues: IntArray = np.minimum(np.maximum(join, sunk), _LEVELS - 1).astype(np.int64)
        return queues
