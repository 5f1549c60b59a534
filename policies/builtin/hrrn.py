"""Highest response ratio next."""

from __future__ import annotations

from cadenza.policies.markers import hookimpl
from cadenza.policies.views import FloatArray, RequestColumns, StepView


class Hrrn:
    """Admit who has waited longest for its size.

        score = -(now - waits_since) / remaining_prefill

    Brinch Hansen's rule of 1971, by which SGLang orders too. The response ratio is
    (wait + service) / service; as the service is in proportion to the tokens to compute, that
    proportion does not change the order, so that no measured speed is needed. Short prompts come
    first, and every wait ends: a prompt ten times as long comes before a new one after ten times
    its wait. SGLang's clock is tokens computed since arrival; ours is seconds, which differ only
    while the engine idles. Nor is there a length of the queue above which we fall back to arrival.

    It loses on mean latency against `shortest-prefill`, by what it gives to those that age, and is
    blind to outputs.
    """

    name = "hrrn"

    @hookimpl
    def order_admissions(self, waiting: RequestColumns, step: StepView) -> FloatArray:
        waited_s = step.now_s - waiting.waits_since_s
        scores: FloatArray = -waited_s / waiting.remaining_prefill
        return scores
