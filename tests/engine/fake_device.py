"""A device whose streams do their work as late, as early, or as mixed up as they may."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from cadenza.engine.device import Stream


@dataclass(eq=False)
class Work:
    """A stream's piece of work, and what has to be done before it."""

    run: Callable[[], None]
    after: list[Work]
    is_done: bool = False


@dataclass
class FakeDevice:
    """Records what streams are given, and does it in an order that depends on `prefer` and seed.

    prefer: the stream whose work is done whenever it may be; the other one's work is done only when
    it has to be. None: some of both, by chance.
    """

    prefer: Stream | None
    seed: int = 0
    kept: list[Tensor] = field(default_factory=list)  # told to live until their work is done
    _given: dict[Stream, list[Work]] = field(default_factory=lambda: {each: [] for each in Stream})
    _after: dict[Stream, list[Work]] = field(default_factory=lambda: {each: [] for each in Stream})

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)

    def run(
        self, stream: Stream, work: Callable[[], None], uses: tuple[Tensor, ...] = ()
    ) -> FakeSpan:
        piece = Work(work, [*self._given[stream][-1:], *self._after[stream]])
        self._given[stream].append(piece)
        self.kept.extend(uses)
        self._work_ahead()
        return FakeSpan(self, piece)

    def wait(self, stream: Stream, on: Stream) -> None:
        self._after[stream] = self._given[on][-1:]

    def finish(self, work: Work) -> None:
        """Do the work, and before it no more than it has to follow."""
        if not work.is_done:
            for before in work.after:
                self.finish(before)
            work.run()
            work.is_done = True

    def finish_all(self) -> None:
        for stream in self._order():
            for work in self._given[stream]:
                self.finish(work)

    def _work_ahead(self) -> None:
        for stream in self._order():
            for work in self._given[stream]:
                if stream is self.prefer or (self.prefer is None and self._chance.random() < 0.5):
                    self.finish(work)

    def _order(self) -> list[Stream]:
        """The streams, the preferred one first."""
        return sorted(Stream, key=lambda stream: stream is not self.prefer)


@dataclass
class FakeSpan:
    """Takes no time."""

    device: FakeDevice
    work: Work

    def wait(self) -> float:
        self.device.finish(self.work)
        return 0.0
