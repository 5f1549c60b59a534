"""Who frees most memory for longest, at the least cost, is the first victim."""

from __future__ import annotations

import numpy as np

from cadenza.policies.lengths import LengthPredictor
from cadenza.policies.markers import hookimpl
from cadenza.policies.views import FloatArray, RequestColumns, StepView

_FIXED_TOKENS = 64  # that a return costs at least: a step shared with others, and a wait for it


class Cheapest:
    """Preempt by the cost of the way back for each block and step that it frees.

        score = (FIXED + computed_tokens) / (blocks_held * outputs yet to come)

    The cost is in tokens to compute again, with a fixed part, so that small requests, which free
    little, are not taken in great numbers. Outputs to come are predicted online, as by
    `srpt-limited`: who would soon end, and free its blocks for nothing, stays.

    A rule of ours, after the cost models of swap and recompute: whether a victim is swapped is
    chosen later, and a copy costs in proportion to its tokens as well, so that both ways give the
    same order. Blocks that others hold too count here as if they were freed; the core judges
    victims as a set by what they truly free.

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
        freed = np.maximum(running.blocks_held, 1) * self._lengths.remaining(running)
        scores: FloatArray = (_FIXED_TOKENS + running.computed_tokens) / freed
        return scores
