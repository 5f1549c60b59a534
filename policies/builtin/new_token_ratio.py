"""Reserve a share of what requests may still generate, and learn the share from preemptions."""

from __future__ import annotations

import numpy as np

from cadenza.policies.markers import hookimpl
from cadenza.policies.views import IntArray, RequestColumns, StepView

INITIAL_RATIO = 0.7
FLOOR_RATIO = 0.1  # 0.14 of the initial ratio
DECAY_STEPS = 600  # from the initial ratio to the floor
MAX_LOOKAHEAD = 4096  # tokens of one request that are looked at
STEPS_AFTER_PREEMPTION = 20  # tokens that each request should get before the next preemption


class NewTokenRatio:
    """Keep `ratio * min(max_tokens - generated, MAX_LOOKAHEAD)` tokens free for every request.

    The ratio falls linearly while nobody is preempted. A preemption raises it to
    `(generated + STEPS_AFTER_PREEMPTION * n) / max_tokens`, summed over the n requests with a seat
    and at most 1. Parked ones count as well, since they may go on. When the policy is asked while
    nothing runs, parked requests or none, the ratio starts afresh: what was learned belongs to a
    load that is over. The rule is SGLang's; unlike it, a preemption never lowers the ratio, and a
    candidate is charged the same share as those who run, not all of its `max_tokens`.
    """

    name = "new-token-ratio"

    def __init__(self) -> None:
        self.ratio = INITIAL_RATIO
        self._preemptions = 0
        self._step_id = 0

    @hookimpl
    def reserve_blocks(
        self, running: RequestColumns, candidates: RequestColumns, step: StepView
    ) -> IntArray:
        self._learn(running, step)
        tokens = np.empty(len(candidates) + 1, dtype=np.int64)
        tokens[0], tokens[1:] = _most(running).sum(), _most(candidates)
        share = self.ratio / step.block_size
        kept: IntArray = np.ceil(tokens.cumsum() * share).astype(np.int64)
        return kept

    def _learn(self, running: RequestColumns, step: StepView) -> None:
        if running.parked.all():
            self.ratio = INITIAL_RATIO
        elif step.preemptions > self._preemptions:
            wanted = running.generated_tokens.sum() + STEPS_AFTER_PREEMPTION * len(running)
            self.ratio = max(self.ratio, min(1.0, float(wanted / running.max_tokens.sum())))
        else:
            decay = (INITIAL_RATIO - FLOOR_RATIO) / DECAY_STEPS
            steps = step.step_id - self._step_id
            self.ratio = max(FLOOR_RATIO, self.ratio - decay * steps)
        self._preemptions = step.preemptions
        self._step_id = step.step_id


def _most(requests: RequestColumns) -> IntArray:
    """Tokens that each may still generate, as far as they are looked at."""
    remaining = requests.max_tokens - requests.generated_tokens
    most: IntArray = np.minimum(remaining, MAX_LOOKAHEAD) * requests.choices
    return most
