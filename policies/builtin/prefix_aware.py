"""The longest cached prefix first, and of those that lack the same block only one."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cadenza.policies.markers import hookimpl
from cadenza.policies.views import BoolArray, FloatArray, IntArray, RequestColumns, StepView

_NOBODY = np.iinfo(np.int64).max  # arrives after everybody


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
        self._requests = np.empty(0, dtype=np.int64)  # that lacked a block then, ascending
        self._cached = np.empty(0, dtype=np.int64)  # tokens that they found then
        self._could = np.empty(0, dtype=bool)  # who could enter then

    @hookimpl
    def order_admissions(self, waiting: RequestColumns, step: StepView) -> FloatArray:
        cached, keys = waiting.cached_tokens, waiting.next_block_key
        scores = -cached.astype(float)
        lacking = keys.nonzero()[0]
        requests = waiting.request[lacking]
        order = requests.argsort(kind="stable")  # of rows that are mostly in order, soon done
        lacking, requests = lacking[order], requests[order]
        cached, keys = cached[lacking], keys[lacking]
        grown, stuck = self._compare(requests, cached)
        # A seat may become free even if none is; who wants one then is as good as anybody
        fits = waiting.choices[lacking] <= max(1, step.free_seats)
        held = _duplicates(keys, waiting.arrival[lacking], fits, stuck)
        if self._step_id == step.step_id - 1:
            held |= grown
        scores[lacking[held]] = np.inf
        self._step_id, self._requests, self._cached = step.step_id, requests, cached
        self._could = fits & ~held
        return scores

    def _compare(self, requests: IntArray, cached: IntArray) -> tuple[BoolArray, BoolArray]:
        """Who finds more than when the policy was last asked; who does not, and could enter."""
        if not len(self._requests):
            nobody = np.zeros(len(requests), dtype=bool)
            return nobody, nobody
        places = self._requests.searchsorted(requests)
        places[places == len(self._requests)] = 0
        known = self._requests[places] == requests
        grown: BoolArray = known & (self._cached[places] < cached)
        stuck: BoolArray = known & ~grown & self._could[places]
        return grown, stuck


def _duplicates(keys: IntArray, arrivals: IntArray, fits: BoolArray, stuck: BoolArray) -> BoolArray:
    """Who has the key of somebody that fits, and is not the earliest of those.

    Nobody of those with the key of somebody that is stuck.
    """
    later = np.zeros(len(keys), dtype=bool)
    several = _repeated(keys)
    if not len(several):
        return later
    several = several[keys[several].argsort()]
    ordered, arrivals = keys[several], arrivals[several]
    starts = np.append(True, ordered[1:] != ordered[:-1])
    groups, firsts = starts.cumsum() - 1, starts.nonzero()[0]
    leaders = np.minimum.reduceat(np.where(fits[several], arrivals, _NOBODY), firsts)
    wait = (leaders < _NOBODY) & ~np.logical_or.reduceat(stuck[several], firsts)
    later[several] = wait[groups] & (arrivals != leaders[groups])
    return later


def _repeated(keys: IntArray) -> npt.NDArray[np.intp]:
    """Where keys are that occur several times. Sorting values alone is the fast part of it."""
    ordered = np.sort(keys)
    repeated = ordered[1:][ordered[1:] == ordered[:-1]]
    if not len(repeated):
        return np.empty(0, dtype=np.intp)
    places = repeated.searchsorted(keys)
    places[places == len(repeated)] = 0
    found: npt.NDArray[np.intp] = (repeated[places] == keys).nonzero()[0]
    return found
