"""When the next token of a request is due, and how long it takes at best. For policies to share."""

from __future__ import annotations

import numpy as np

from cadenza.policies.views import BoolArray, FloatArray, RequestColumns, StepView

NO_DEADLINE = 1e12  # a score behind every time, since +inf would keep a request out


def due_s(requests: RequestColumns) -> FloatArray:
    """When each request's next token is due by its targets; +inf: never.

    The first one `ttft_target_s` after arrival, each further one `tpot_target_s` later. Where only
    the latter is given, a token is due so long after the request last ran. A deadline is when
    everything is due.
    """
    first = requests.arrival_s + requests.ttft_target_s
    generated = requests.generated_tokens
    begun = generated.nonzero()[0]  # few of those that wait
    if len(begun):
        tpot_s, done = requests.tpot_target_s.take(begun), generated.take(begun)
        own = first.take(begun)
        last_s = requests.last_run_s.take(begun)
        first[begun] = np.where(np.isinf(own), last_s + tpot_s, own + done * tpot_s)
    due: FloatArray = np.minimum(first, requests.deadline_s)
    return due


def prefill_s(requests: RequestColumns, step: StepView) -> FloatArray:
    """Seconds until the next token at best: what is left to prefill, all alone. 0: unknown."""
    return requests.remaining_prefill.astype(np.float64) * step.token_s


def feasible_first(scores: FloatArray, can: BoolArray, requests: RequestColumns) -> FloatArray:
    """Those that can still meet what they want by their scores, all others behind, by arrival."""
    late = (~can).nonzero()[0]
    ordered = scores.copy()
    ordered[late] = NO_DEADLINE + requests.arrival.take(late)
    return ordered
