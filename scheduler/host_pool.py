"""Host blocks for the keys and values of swapped rows."""

from __future__ import annotations

from collections.abc import Iterable


class HostPool:
    """Hands out host blocks, each to one row.

    A released block is not handed out before the next step: a plan's swap-outs run before its
    swap-ins, so a block that is read in this step must not be written in it.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))
        self._released: list[int] = []

    @property
    def num_free(self) -> int:
        """Blocks that `take` can hand out now."""
        return len(self._free)

    @property
    def num_unused(self) -> int:
        """Blocks that nobody holds, those included that become free with the next step."""
        return len(self._free) + len(self._released)

    def take(self, num: int) -> list[int]:
        """Take `num` blocks.

        Raises:
            AssertionError: fewer are free; callers check `num_free` first.
        """
        assert num <= len(self._free), f"{num} host blocks wanted, {len(self._free)} free"
        cut = len(self._free) - num
        taken = self._free[cut:]
        del self._free[cut:]
        return taken

    def release(self, blocks: Iterable[int]) -> None:
        """Give blocks back; they are free from the next `settle` on."""
        self._released.extend(blocks)

    def settle(self) -> None:
        """The last plan has run: what was released before is free now."""
        self._free.extend(self._released)
        self._released.clear()

    def check(self, held: Iterable[int]) -> None:
        """Raises AssertionError unless every block is free, released, or held by one row."""
        everything = sorted([*self._free, *self._released, *held])
        assert everything == list(range(self.num_blocks)), "host blocks are lost or doubled"
