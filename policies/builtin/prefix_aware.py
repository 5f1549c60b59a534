"""The longest cached prefix first, and of those that lack the same block only one."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cadenza.policies.markers import hookimpl
from cadenza.policies.memory import Memory
from cadenza.policies.views import BoolArray, FloatArray, IntArray, RequestColumns, StepView

_NOBODY = np.iinfo(np.int64).max  # arrives after everybody
_EVERYTHING = np.iinfo(np.int64).max  # tokens, more than anybody finds
_CACHED, _COULD = 0, 1  # columns of the memory
Indices = npt.NDArray[np.intp]

_NOWHERE: Indices = np.empty(0, dtype=np.intp)


class PrefixAware:
    """Admit who finds the longest prefix in the cache: `score = -cached_tokens`.

    Requests with equal `next_block_key` would compute the same block: of those for whose choices
    there are seats the earliest goes, all others stay out of this step (+inf), and find the block
    in the next. They stay out for as long as their cached prefix grows from one step to the next,
    as then somebody who runs is computing it for them, chunk by chunk. Once it grows no more, or
    all of it is there, they go on. A request waits so for as many steps as its prefix has chunks,
    and one more. Once the one that could go still waits when the policy is next asked, and has
    found no more, nobody is held back for it: its reader may take no tokens. If only its turn had
    not come, its equals may go in one step with it.

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
        # Of that step, what those who lacked a block had found, and who could enter
        self._memory = Memory(_EVERYTHING, False)

    @hookimpl
    def order_admissions(self, waiting: RequestColumns, step: StepView) -> FloatArray:
        cached, keys, requests = waiting.cached_tokens, waiting.next_block_key, waiting.request
        lacks = keys != 0
        before = self._memory.find(requests)
        grown = lacks & (self._memory.values(_CACHED, before) < cached)
        # A seat may become free even if none is; who wants one then is as good as anybody
        fits = waiting.choices <= max(1, step.free_seats)
        held = np.zeros(len(keys), dtype=np.bool_)
        several, starts = _repeated(keys, lacks)
        if len(several):
            stuck = self._memory.values(_COULD, before.take(several)) & ~grown.take(several)
            arrivals = waiting.arrival.take(several)
            held[several] = _duplicates(starts, arrivals, fits.take(several), stuck)
        if self._step_id == step.step_id - 1:
            held |= grown
        found = cached if lacks.all() else np.where(lacks, cached, _EVERYTHING)
        self._memory.keep(requests, found, lacks & fits & ~held)
        self._step_id = step.step_id
        scores = -cached.astype(np.float64)
        scores[held.nonzero()[0]] = np.inf
        return scores


def _duplicates(
    starts: BoolArray, arrivals: IntArray, fits: BoolArray, stuck: BoolArray
) -> BoolArray:
    """Who has the key of somebody that fits, and is not the earliest of those.

    Nobody of those with the key of somebody that is stuck. Equal keys are together, and begin where
    `starts` says.
    """
    firsts = starts.nonzero()[0]
    leaders = np.minimum.reduceat(np.where(fits, arrivals, _NOBODY), firsts)
    wait = (leaders < _NOBODY) & ~np.logical_or.reduceat(stuck, firsts)
    groups = starts.cumsum() - 1
    later: BoolArray = wait.take(groups) & (arrivals != leaders.take(groups))
    return later


def _repeated(keys: IntArray, lacks: BoolArray) -> tuple[Indices, BoolArray]:
    """Where keys are that occur several times, equals together; and where others begin."""
    rows = None if lacks.all() else lacks.nonzero()[0]
    own = keys if rows is None else keys.take(rows)
    halves = np.sort(own.astype(np.uint32))  # a fraction of the work, which mostly tells them apart
    if not (halves[1:] == halves[:-1]).any():
        return _NOWHERE, _NOWHERE.astype(np.bool_)
    order = own.argsort()
    ordered = own.take(order)
    differ = np.ones(len(own) + 1, dtype=np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=differ[1:-1])
    several = (~(differ[1:] & differ[:-1])).nonzero()[0]
    order = order.take(several)
    return order if rows is None else rows.take(order), differ.take(several)
