"""What was not used for longest is evicted first."""

from __future__ import annotations

from cadenza.policies.cached_blocks import CachedBlocks
from cadenza.policies.markers import hookimpl
from cadenza.policies.views import FloatArray, StepView


class OldestBlock:
    """Least recently used, the tail of a request before its head, as in vLLM.

    It is not asked, since the pool keeps that order by itself.
    """

    name = "oldest-block"

    @hookimpl
    def rank_cached_blocks(self, blocks: CachedBlocks, step: StepView) -> FloatArray:
        return blocks.last_use.astype(float)
