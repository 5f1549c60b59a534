"""The least to compute first."""

from __future__ import annotations

from cadenza.policies.markers import hookimpl
from cadenza.policies.views import FloatArray, RequestColumns, StepView


class ShortestPrefill:
    """Admit who has the fewest prompt tokens to compute: `score = num_tokens - cached`.

    The rule of SGLang's `shortest-prefill-first` and of TensorRT-LLM's `shortest_uncached_first`:
    shortest job first on what is known for sure. It needs no prediction, and favours whoever finds
    a long prefix in the cache. Unlike SGLang's it does not hold back equal prompts (`prefix-aware`
    does), and the core shares a step's tokens among long and short prefills anyway.

    It loses where long prompts keep meeting short ones: they wait until a guard helps them. It is
    blind to outputs, so a short prompt with a long answer comes first.
    """

    name = "shortest-prefill"

    @hookimpl
    def order_admissions(self, waiting: RequestColumns, step: StepView) -> FloatArray:
        return waiting.remaining_prefill.astype(float)
