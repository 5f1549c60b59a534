"""Outputs become as long as those of the same kind did."""

from __future__ import annotations

from cadenza.policies.lengths import LengthPredictor
from cadenza.policies.markers import hookimpl
from cadenza.policies.views import FloatArray, RequestColumns, StepView


class ObservedLengths:
    """The mean output of requests of a kind: tenant, and powers of two of prompt and `max_tokens`.

    Learned from those that finish, as Past-Future (ASPLOS 2025) and SGLang's new-token ratio learn
    from them, where predictors of the literature ask a model (S3, LTR, TRAIL). Old ones fade, kinds
    that were hardly seen are drawn towards all others, and nothing is said before the first has
    finished. The rule is that of `policies.lengths`, which `srpt-limited` and `cheapest` use for
    themselves where nobody predicts; the difference is that here each request keeps what was
    expected when it came, and that every policy, an operator's own too, sees it.

    It loses where lengths do not follow from kinds; and a mean is a poor guide to outputs of which
    most are short and some very long.
    """

    name = "observed-lengths"

    def __init__(self) -> None:
        self._lengths = LengthPredictor()

    @hookimpl
    def on_finished(self, finished: RequestColumns, step: StepView) -> None:
        self._lengths.learn(finished)

    @hookimpl
    def predict_lengths(self, arrived: RequestColumns, step: StepView) -> FloatArray | None:
        return self._lengths.total(arrived) if self._lengths.has_learned else None
