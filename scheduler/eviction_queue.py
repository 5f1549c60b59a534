"""Unheld blocks that can still be found, in the order in which they will be evicted."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt

from cadenza.scheduler.columns import where

Blocks = npt.NDArray[np.signedinteger[Any]]
Stamps = npt.NDArray[np.int64]

_ABSENT = 0
_LOOK_AHEAD = 1024


class EvictionQueue:
    """Oldest first; blocks come and go in runs.

    A block that leaves out of turn stays in its run and is passed over when its time comes: its
    stamp is no longer the one it was queued with.
    """

    def __init__(self, num_blocks: int) -> None:
        self._stamps: Stamps = np.zeros(num_blocks, dtype=np.int64)  # 0: not in the queue
        self._runs: deque[tuple[Blocks, Stamps]] = deque()
        self.num = 0  # blocks in the queue
        self._num_queued = 0  # and those that left it out of turn
        self._last_stamp = 0

    def has(self, blocks: Blocks) -> npt.NDArray[np.bool_]:
        """Which of the blocks are in the queue."""
        queued: npt.NDArray[np.bool_] = self._stamps[blocks] != _ABSENT
        return queued

    def push(self, blocks: Blocks) -> None:
        """Queue these blocks, in this order, behind all others; none may be in the queue."""
        num = len(blocks)
        if not num:
            return
        stamps = np.arange(self._last_stamp + 1, self._last_stamp + num + 1)
        self._stamps[blocks] = stamps
        self._runs.append((blocks, stamps))
        self._last_stamp += num
        self.num += num
        self._num_queued += num
        if self._num_queued > 2 * len(self._stamps):
            self._compact()

    def discard(self, blocks: Blocks) -> None:
        """Take these blocks, all in the queue, out of it."""
        self._stamps[blocks] = _ABSENT
        self.num -= len(blocks)

    def pop(self, num: int) -> Blocks:
        """The `num` oldest blocks, which leave the queue; it must have as many."""
        assert num <= self.num
        if not num:
            return np.empty(0, dtype=np.intp)
        popped: list[Blocks] = []
        while num:
            blocks, stamps = self._runs.popleft()
            # Many at once, as a run may be full of blocks that left it out of turn
            head = blocks[: max(num, _LOOK_AHEAD)]
            queued = where(self._stamps[head] == stamps[: len(head)])
            end = queued.item(num) if len(queued) > num else len(head)
            if end < len(blocks):
                self._runs.appendleft((blocks[end:], stamps[end:]))
            self._num_queued -= end
            popped.append(head[queued[:num]])
            num -= len(popped[-1])
        oldest = popped[0] if len(popped) == 1 else np.concatenate(popped)
        self.discard(oldest)
        return oldest

    def blocks(self) -> Blocks:
        """All blocks in the queue, oldest first."""
        found = np.flatnonzero(self._stamps)
        return found[np.argsort(self._stamps[found])]

    def _compact(self) -> None:
        blocks = self.blocks()
        self._runs = deque([(blocks, self._stamps[blocks])])
        self._num_queued = len(blocks)
