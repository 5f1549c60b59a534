"""All growth is paid for at admission, so that running requests are not preempted for memory."""

from __future__ import annotations

import numpy as np

from cadenza.policies.markers import hookimpl
from cadenza.policies.views import IntArray, RequestColumns, StepView


class NoEvict:
    """Keep free what every request may still grow to, were it to use all its `max_tokens`.

    Per request `ceil((prompt_tokens + max_tokens) / block_size)` blocks less those it holds; a
    candidate holds the blocks of its known tokens once it has entered. Several choices share the
    full blocks of their prompt. The rule is GUARANTEED_NO_EVICT of TensorRT-LLM, and Orca's. It
    wastes what is never generated: the larger `max_tokens`, the smaller the batch.

    Nobody that runs is preempted for memory, as long as every request fits the pool with all its
    choices, readers keep up, and no displacement policy is chosen. Otherwise:

    - The core waives reservations for whoever enters while nothing runs. A request whose choices
      exceed the pool enters so, and they evict each other; another may enter so beside parked
      requests, and not all of them fit once those go on. (While others run, parked requests count
      like running ones.)
    - Choices that are parked before they had a copy of the block they share need one later, and
      nobody has paid for it.
    - Who may displace others enters without paying for its growth, whether or not they leave.
    """

    name = "no-evict"

    @hookimpl
    def reserve_blocks(
        self, running: RequestColumns, candidates: RequestColumns, step: StepView
    ) -> IntArray:
        entry = _blocks(candidates.num_tokens, step)
        kept = np.zeros(len(candidates) + 1, dtype=np.int64)
        kept[0] = np.maximum(_most(running, step) - running.blocks_held, 0).sum()
        kept[1:] = kept[0] + np.cumsum(np.maximum(_most(candidates, step) - entry, 0))
        return kept


def _most(requests: RequestColumns, step: StepView) -> IntArray:
    """Blocks of each at its longest, of all its choices together."""
    one = _blocks(requests.prompt_tokens + requests.max_tokens, step)
    shared = requests.prompt_tokens // step.block_size
    most: IntArray = one + (requests.choices - 1) * (one - shared)
    return most


def _blocks(tokens: IntArray, step: StepView) -> IntArray:
    """Blocks that hold so many tokens, the last one perhaps in part."""
    blocks: IntArray = -(-tokens // step.block_size)
    return blocks
