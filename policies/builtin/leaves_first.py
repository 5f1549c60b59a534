"""Ends of prefixes are evicted before what others continue."""

from __future__ import annotations

from cadenza.policies.cached_blocks import CachedBlocks
from cadenza.policies.markers import hookimpl
from cadenza.policies.views import FloatArray, StepView


class LeavesFirst:
    """Blocks that nothing continues first, of those the least recently used (RadixAttention).

        score = last_use, plus the number of blocks for one that is continued

    SGLang's radix cache evicts leaves only, and a parent becomes one when its last child has gone;
    here it does at the next step's ranking, and goes in the same step only if the leaves do not
    suffice. It differs from the default where two requests computed a prefix at once: what the
    second one adds continues the blocks of the first, which may be let go of long before.

    It loses a little time: all cached blocks are looked at in each step that evicts some.
    """

    name = "leaves-first"

    @hookimpl
    def rank_cached_blocks(self, blocks: CachedBlocks, step: StepView) -> FloatArray:
        return (blocks.last_use + len(blocks) * blocks.continued).astype(float)
