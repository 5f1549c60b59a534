"""The blocks that are cached, as a policy sees them that says which of them go first."""

from __future__ import annotations

from cadenza.policies.views import BoolArray, Columns, IntArray


class CachedBlocks(Columns):
    """KV blocks whose contents can be found and that no request holds. One element a block."""

    __slots__ = ()

    @property
    def block(self) -> IntArray:
        """The block's number."""
        return self._gather("block")

    @property
    def last_use(self) -> IntArray:
        """Rank of the time when the last request let go of it: 0 was used longest ago."""
        return self._gather("last_use")

    @property
    def published(self) -> IntArray:
        """Rank of the time when it was computed: smaller was earlier; not from 0."""
        return self._gather("published")

    @property
    def continued(self) -> BoolArray:
        """Whether another findable block, cached or held, continues its prefix.

        It would be unfindable, too.
        """
        return self._gather("continued")
