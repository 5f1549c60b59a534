"""How many tokens each reader still takes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

UNLIMITED = 0  # the slot of rows whose reader takes everything

Slots = npt.NDArray[np.int64]


class Credits:
    """Tokens left by slot. All rows of one request share a slot, as one stream carries them."""

    def __init__(self) -> None:
        self.left = np.full(16, np.iinfo(np.int64).max, dtype=np.int64)
        self._holders = np.zeros(16, dtype=np.int64)
        self._free = list(range(15, UNLIMITED, -1))
        self.num_limited = 0  # slots in use

    def open(self, tokens: int | None) -> int:
        """A slot with `tokens` left, held by one row; None: the unlimited one."""
        if tokens is None:
            return UNLIMITED
        if not self._free:
            self._grow()
        slot = self._free.pop()
        self.left[slot] = tokens
        self._holders[slot] = 1
        self.num_limited += 1
        return slot

    def hold(self, slot: int) -> None:
        """One more row shares the slot."""
        if slot != UNLIMITED:
            self._holders[slot] += 1

    def release(self, slot: int) -> None:
        """One row less shares the slot; the last closes it."""
        if slot == UNLIMITED:
            return
        self._holders[slot] -= 1
        if not self._holders[slot]:
            self._free.append(slot)
            self.num_limited -= 1

    def grant(self, slot: int, tokens: int) -> None:
        """The reader takes `tokens` more, or less if negative."""
        if slot != UNLIMITED:
            self.left[slot] += tokens

    def spend(self, slots: Slots) -> None:
        """One token for each of these rows."""
        if self.num_limited:
            np.subtract.at(self.left, slots[slots != UNLIMITED], 1)

    def within(self, slots: Slots) -> npt.NDArray[np.bool_]:
        """Which of these rows may each get a token, the earlier ones of a slot first."""
        if not self.num_limited:
            return np.ones(len(slots), dtype=bool)
        order = np.argsort(slots, kind="stable")
        ordered = slots[order]
        first = np.searchsorted(ordered, ordered, side="left")
        within = np.empty(len(slots), dtype=bool)
        within[order] = np.arange(len(slots)) - first < self.left[ordered]
        return within

    def _grow(self) -> None:
        size = len(self.left)
        self.left = np.concatenate((self.left, np.zeros(size, dtype=np.int64)))
        self._holders = np.concatenate((self._holders, np.zeros(size, dtype=np.int64)))
        self._free.extend(range(2 * size - 1, size - 1, -1))
