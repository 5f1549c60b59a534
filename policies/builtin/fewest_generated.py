"""Who has generated least is the first victim."""

from __future__ import annotations

import numpy as np

from cadenza.policies.markers import hookimpl
from cadenza.policies.views import FloatArray, RequestColumns, StepView


class FewestGenerated:
    """Preempt who has the fewest output tokens; among equals the longest prompt.

    SGLang's order when it retracts requests from a full pool: those close to their end stay, and
    the longest prompt gives most room. It loses where prompts are long and outputs short: who has
    just computed a long prompt is the first to have computed it for nothing. `cheapest` counts
    that.
    """

    name = "fewest-generated"

    @hookimpl
    def select_victims(self, running: RequestColumns, step: StepView) -> FloatArray:
        order = np.lexsort((-running.prompt_tokens, running.generated_tokens))
        scores = np.empty(len(running))
        scores[order] = np.arange(len(running))
        return scores
