"""All growth is paid for at admission, so that nobody is ever preempted for memory."""

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

    Parked requests count like running ones, since they may go on at any time.
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
