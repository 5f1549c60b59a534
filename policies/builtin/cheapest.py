"""Who frees most memory for longest, at the least cost, is the first victim."""

from __future__ import annotations

import numpy as np

from cadenza.policies.lengths import LengthPredictor
from cadenza.policies.markers import hookimpl
from cadenza.policies.views import FloatArray, RequestColumns, StepView

_FIXED_TOKENS = 64  # that a return costs at least: a step shared with others, and a wait for it


class Cheapest:
    """Preempt by the cost of the way back for each block and step that it frees.

        score = (FIXED + tokens to compute again) / (blocks_alone * outputs yet to come)

    Those are its tokens in blocks that it holds alone: the others stay where they are, and are
    found again. A fixed part is added, so that small requests, which free little, are not taken in
    great numbers. Outputs to come are predicted as by `srpt-limited`: who would soon end, and free
    its blocks for nothing, stays.

    A rule of ours, after the cost models of swap and recompute: whether a victim is swapped is
    chosen later, and a copy costs in proportion to its blocks, so that both ways give the same
    order. Two that share a prefix with each other alone would free it together, which is not
    counted here; the core judges victims as a set by what they truly free.

    It loses where lengths cannot be predicted, and it may take old requests: no order of arrival or
    admission is in it but for ties, which go to the newest admission.
    """

    name = "cheapest"

    def __init__(self) -> None:
        self._lengths = LengthPredictor()

    @hookimpl
    def on_finished(self, finished: RequestColumns, step: StepView) -> None:
        self._lengths.learn(finished)

    @hookimpl
    def select_victims(self, running: RequestColumns, step: StepView) -> FloatArray:
        alone = running.blocks_alone
        again = np.minimum(running.computed_tokens, alone * step.block_size)
        freed = np.maximum(alone, 1) * self._lengths.remaining(running)
        scores: FloatArray = (_FIXED_TOKENS + again) / freed
        return scores
