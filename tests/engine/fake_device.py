"""A device whose streams do their work as late, as early, or as mixed up as they may."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from cadenza.engine.device import Memory, Stream
from tests.engine.tape import Tape


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
    has: Memory | None = None
    works_beside: bool = True
    pools: list[object] = field(default_factory=list)
    num_captures: int = 0
    num_replays: int = 0
    _given: dict[Stream, list[Work]] = field(default_factory=lambda: {each: [] for each in Stream})
    _after: dict[Stream, list[Work]] = field(default_factory=lambda: {each: [] for each in Stream})
    _is_capturing: bool = False

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)

    def run(self, stream: Stream, work: Callable[[], None]) -> FakeSpan:
        assert not self._is_capturing, "a capture holds one stream's work"
        piece = Work(work, [*self._given[stream][-1:], *self._after[stream]])
        self._given[stream].append(piece)
        self._work_ahead()
        return FakeSpan(self, piece)

    def wait(self, stream: Stream, on: Stream) -> None:
        self._after[stream] = self._given[on][-1:]

    def graph_pool(self) -> object:
        self.pools.append(object())
        return self.pools[-1]

    def capture(self, work: Callable[[], None], pool: object) -> Callable[[], None]:
        """Do the work, then note which operations over which addresses it consists of."""
        assert pool is self.pools[-1], "a pool is over with the captures that it was for"
        self.finish_all()
        work()
        tape = Tape()
        self._is_capturing = True
        with tape:
            work()
        self._is_capturing = False
        self.num_captures += 1

        def again() -> None:
            self.num_replays += 1
            tape.replay()

        return again

    def host_memory(self, num_bytes: int) -> Tensor:
        return torch.full((num_bytes,), 0x55, dtype=torch.uint8)

    def memory(self) -> Memory | None:
        return self.has

    def finish(self, work: Work) -> None:
        """Do the work, and before it no more than it has to follow."""
        if not work.is_done:
            for before in work.after:
                self.finish(before)
            work.run()
            work.is_done = True
            work.after.clear()

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
