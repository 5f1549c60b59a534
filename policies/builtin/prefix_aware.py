"""The longest cached prefix first, and of those that lack the same block only one."""

from __future__ import annotations

import numpy as np

from cadenza.policies.markers import hookimpl
from cadenza.policies.views import BoolArray, FloatArray, IntArray, RequestColumns, StepView


class PrefixAware:
    """Admit who finds the longest prefix in the cache: `score = -cached_tokens`.

    Requests with equal `next_block_key` would compute the same block: the earliest goes, the others
    stay out of this step (+inf), and find the block in the next. They stay out for as long as
    their cached prefix grows from one step to the next, as then somebody who runs is computing it
    for them, chunk by chunk. Once it grows no more, or all of it is there, they go on. A request
    waits so for as many steps as its prefix has chunks, and one more.

    The rule is SGLang's longest prefix match (NeurIPS 2024), which serves a queue in the best order
    for hits if the cache holds the longest request. Its in-queue duplicates, told by 32 equal
    tokens, go to the back of the queue for a round, and below 128 waiting only; ours are told by
    their blocks, held back while it pays, and in queues of any length.

    It loses fairness: whoever shares nothing waits until a guard helps (`prefix-fair` is the
    answer to that). A step may have room that those who are held back do not use.
    """

    name = "prefix-aware"

    def __init__(self) -> None:
        self._step_id = -1  # of the step in which the policy was last asked
        self._requests = np.empty(0, dtype=np.int64)  # that lacked a block then, ascending
        self._cached = np.empty(0, dtype=np.int64)  # tokens that they found then

    @hookimpl
    def order_admissions(self, waiting: RequestColumns, step: StepView) -> FloatArray:
        cached, keys = waiting.cached_tokens, waiting.next_block_key
        scores = -cached.astype(float)
        lacking = keys.nonzero()[0]
        requests = waiting.request[lacking]
        order = requests.argsort()
        lacking, requests = lacking[order], requests[order]
        cached = cached[lacking]
        held = self._growing(requests, cached, step)
        held |= _duplicates(keys[lacking], waiting.arrival[lacking])
        scores[lacking[held]] = np.inf
        self._step_id, self._requests, self._cached = step.step_id, requests, cached
        return scores

    def _growing(self, requests: IntArray, cached: IntArray, step: StepView) -> BoolArray:
        """Whose cached prefix is longer than it was in the step before."""
        if self._step_id != step.step_id - 1 or not len(self._requests):
            return np.zeros(len(requests), dtype=bool)
        places = self._requests.searchsorted(requests)
        places[places == len(self._requests)] = 0
        known = self._requests[places] == requests
        growing: BoolArray = known & (self._cached[places] < cached)
        return growing


def _duplicates(keys: IntArray, arrivals: IntArray) -> BoolArray:
    """Who has the key of an earlier arrival."""
    order = keys.argsort()
    ordered = keys[order]
    starts = np.append(True, ordered[1:] != ordered[:-1])[: len(keys)]
    if starts.all():
        return np.zeros(len(keys), dtype=bool)
    groups = starts.cumsum() - 1  # [requests], in the order of their keys
    earliest = np.minimum.reduceat(arrivals[order], starts.nonzero()[0])
    later = np.empty(len(keys), dtype=bool)
    later[order] = arrivals[order] != earliest[groups]
    return later
