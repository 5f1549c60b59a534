"""Nobody says how long outputs become."""

from __future__ import annotations

import numpy as np

from cadenza.policies.markers import hookimpl
from cadenza.policies.views import FloatArray, RequestColumns, StepView


class NoPrediction:
    """No prediction of its own; it is not asked.

    `srpt-limited`, `cheapest` and others that go by lengths learn them for themselves.
    """

    name = "no-prediction"

    @hookimpl
    def predict_lengths(self, arrived: RequestColumns, step: StepView) -> FloatArray:
        return np.zeros(len(arrived))
