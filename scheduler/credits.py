"""How many tokens each reader still takes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_MOST = 1 << 62

UNLIMITED = 0  # the slot of rows whose reader takes everything

Slots = npt.NDArray[np.int64]


class Credits:
    """Tokens left by slot. All rows of one request share a slot, as one stream carries them.

    A row of several choices draws a token for each at once, so it runs only with credit for all.
    """

    def __init__(self) -> None:
        self.left = np.zeros(16, dtype=np.int64)
        self.left[UNLIMITED] = np.iinfo(np.int64).max
        self._reserved = np.zeros(16, dtype=np.int64)  # for tokens of the step being planned
        self._overdraft = np.zeros(16, dtype=np.int64)  # that taking back in flight allows for
        self._holders = np.zeros(16, dtype=np.int64)
        self._free = list(range(15, UNLIMITED, -1))
        self._requests: dict[int, Sequence[int]] = {}  # by slot
        self._slot_of: dict[int, int] = {}  # by request
        self.num_limited = 0  # slots in use

    def open(self, tokens: int | None, requests: Sequence[int] = (), *, in_flight: int = 0) -> int:
        """A slot with `tokens` left, held by one row; None: the unlimited one.

        `requests` name the slot for as long as any row holds it, their own ends notwithstanding.
        `in_flight` are tokens that may be on their way and come besides.
        """
        if tokens is None:
            return UNLIMITED
        if not self._free:
            self._grow()
        slot = self._free.pop()
        self.left[slot], self._overdraft[slot] = min(tokens, _MOST), in_flight
        self._holders[slot] = 1
        self.num_limited += 1
        self._requests[slot] = requests
        self._slot_of.update(dict.fromkeys(requests, slot))
        return slot

    def share(self, request: int, requests: Sequence[int]) -> int:
        """The slot of a request that is here, held by one row more and named by `requests`, too."""
        slot = self.slot_of(request)
        if slot != UNLIMITED:
            self.hold(slot)
            self._requests[slot] = (*self._requests[slot], *requests)
            self._slot_of.update(dict.fromkeys(requests, slot))
        return slot

    def is_granted(self, slot: int) -> bool:
        """Whether a reader grants what is left in the slot."""
        return slot != UNLIMITED and bool(self._requests[slot])

    def slot_of(self, request: int) -> int:
        """The slot that a request was opened with; the unlimited one if that is closed."""
        return self._slot_of.get(request, UNLIMITED)

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
            for request in self._requests.pop(slot):
                del self._slot_of[request]

    def grant(self, slot: int, tokens: int) -> None:
        """The reader takes `tokens` more, or less if negative, but never less than none.

        What is being computed is delivered all the same; the next grants make up for it.
        """
        if slot != UNLIMITED:
            left = self.left[slot] = min(max(0, int(self.left[slot]) + tokens), _MOST)
            if tokens < 0:
                self._overdraft[slot] = max(0, int(self._reserved[slot]) - left)

    def spend(self, slots: Slots) -> None:
        """One token for each of these rows."""
        np.subtract.at(self.left, slots[slots != UNLIMITED], 1)

    def cover(self, slots: Slots, choices: Slots) -> npt.NDArray[np.bool_]:
        """Which of these rows could run now, each by itself."""
        covered: npt.NDArray[np.bool_] = self.left[slots] >= choices
        return covered

    def begin(self) -> None:
        """Nothing is reserved yet in this step."""
        self._reserved[:] = 0

    def reserve(self, slots: Slots, choices: Slots) -> npt.NDArray[np.bool_]:
        """Set credit aside for these rows, the first ones first; returns for which there is some.

        Whoever is planned may draw a token, be it a decode or the end of a prefill.
        """
        granted = np.ones(len(slots), dtype=bool)
        wanted = np.bincount(slots, choices, minlength=len(self.left)).astype(np.int64)
        wanted[UNLIMITED] = 0
        if (self._reserved + wanted <= self.left).all():
            self._reserved += wanted
            return granted
        for index in np.flatnonzero(slots != UNLIMITED).tolist():
            slot, num = int(slots[index]), int(choices[index])
            granted[index] = self.has_spare(slot, num)
            if granted[index]:
                self.set_aside(slot, num)
        return granted

    def set_aside(self, slot: int, num: int) -> None:
        """Reserve `num` tokens."""
        if slot != UNLIMITED:
            self._reserved[slot] += num

    def spare(self, slots: Slots, choices: Slots) -> npt.NDArray[np.bool_]:
        """For which of these rows credit could be set aside, each by itself."""
        spare: npt.NDArray[np.bool_] = self.left[slots] - self._reserved[slots] >= choices
        return spare

    def has_spare(self, slot: int, num: int) -> bool:
        """Whether `num` tokens could be reserved."""
        return bool(self._reserved[slot] + num <= self.left[slot])

    def check(self, slots: Slots) -> None:
        """Recount the holders; `slots` has one element for each row.

        Raises:
            AssertionError: a slot is held by others than these rows, or a reader got too much.
        """
        holders = np.bincount(slots[slots != UNLIMITED], minlength=len(self.left))
        used = np.flatnonzero(holders)
        assert np.array_equal(holders[used], self._holders[used]), "holders differ from the rows"
        assert self.num_limited == len(used), "a slot is held by nobody"
        assert len({*self._free, *used.tolist()}) == len(self.left) - 1, "slots are lost or doubled"
        assert (self.left[used] >= -self._overdraft[used]).all(), "a reader got too much"

    def _grow(self) -> None:
        size = len(self.left)
        self.left = np.concatenate((self.left, np.zeros(size, dtype=np.int64)))
        self._reserved = np.concatenate((self._reserved, np.zeros(size, dtype=np.int64)))
        self._overdraft = np.concatenate((self._overdraft, np.zeros(size, dtype=np.int64)))
        self._holders = np.concatenate((self._holders, np.zeros(size, dtype=np.int64)))
        self._free.extend(range(2 * size - 1, size - 1, -1))
