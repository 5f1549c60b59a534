"""A trace: who asked for how much, and when."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cadenza.simulator.errors import SimulatorError

Tokens = npt.NDArray[np.int32]


class Recorded(NamedTuple):
    """What became of a request where the trace was recorded; nan: it never came to that."""

    ttft_s: float
    e2e_s: float  # from arrival to the last token
    preemptions: int


class TraceRequest(NamedTuple):
    """One request of one choice. Lengths are in tokens."""

    arrival_s: float  # from the beginning of the trace
    prompt_tokens: int
    output_tokens: int
    tenant: str = ""
    blocks: tuple[int, ...] = ()  # names of the prompt's first blocks, of `Trace.block_tokens` each
    max_tokens: int = 0  # that the client asked for; 0: nobody knows
    priority: int = 0
    ttft_target_s: float = math.inf
    tpot_target_s: float = math.inf
    recorded: Recorded | None = None


class Span(NamedTuple):
    """A while of a trace, its end not in it."""

    begin_s: float
    end_s: float

    def holds(self, time_s: float) -> bool:
        return self.begin_s <= time_s < self.end_s


WHOLE = Span(0.0, math.inf)


@dataclass(frozen=True, kw_only=True)
class Trace:
    """Requests in the order in which they arrive; a block's name stands for all before it, too."""

    source: str
    kind: str  # which format, or how it was made
    requests: Sequence[TraceRequest]
    block_tokens: int = 0  # that a named block has; 0: no prompt has any
    notes: Sequence[str] = field(default_factory=tuple)  # what was done to it since it was read

    @cached_property
    def arrival_s(self) -> npt.NDArray[np.float64]:
        """Of each request. Not to be written to."""
        return np.array([each.arrival_s for each in self.requests])

    @cached_property
    def output_tokens(self) -> npt.NDArray[np.int64]:
        """Of each request. Not to be written to."""
        return np.array([each.output_tokens for each in self.requests], dtype=np.int64)

    @property
    def span_s(self) -> float:
        """From its beginning to the last arrival."""
        return self.requests[-1].arrival_s if self.requests else 0.0

    def window(self, span: Span) -> Trace:
        """Those that arrive in it, which begin a trace of their own.

        Raises:
            SimulatorError: there are none.
        """
        kept = self.within(span)
        if kept.start == kept.stop:
            raise SimulatorError(
                f"no request of {self.source} arrives from {span.begin_s:g} to {span.end_s:g} s; "
                f"the last of {len(self.requests)} arrives at {self.span_s:g} s"
            )
        cut = self.part(kept, span.begin_s)
        return cut._changed(cut.requests, f"from {span.begin_s:g} to {span.end_s:g} s")

    def within(self, span: Span) -> slice:
        """Which requests arrive in this time."""
        first, end = np.searchsorted(self.arrival_s, span).tolist()
        return slice(first, end)

    def part(self, requests: slice, begin_s: float) -> Trace:
        """These requests alone, all of them so much earlier."""
        moved = [
            each._replace(arrival_s=each.arrival_s - begin_s) for each in self.requests[requests]
        ]
        return replace(self, requests=moved)

    def stretched(self, factor: float) -> Trace:
        """All times so many times as long, which keeps the shape of bursts.

        Raises:
            SimulatorError: the factor is not above 0.
        """
        if not 0 < factor < math.inf:
            raise SimulatorError(f"time cannot be stretched {factor:g} times")
        moved = [each._replace(arrival_s=factor * each.arrival_s) for each in self.requests]
        return self._changed(moved, f"time stretched {factor:g} times")

    def first(self, num: int) -> Trace:
        """The first `num` requests.

        Raises:
            SimulatorError: `num` is not above 0.
        """
        if num < 1:
            raise SimulatorError(f"{num} requests are none")
        return self._changed(self.requests[:num], f"the first {num}")

    def jittered(self, seed: int) -> Trace:
        """Arrivals that the trace has at the same time, spread evenly up to the next ones."""
        times = self.arrival_s
        distinct = np.unique(times)
        if len(distinct) < 2:
            return self
        after = np.append(distinct[1:], 2 * distinct[-1] - distinct[-2])
        gaps = (after - distinct)[np.searchsorted(distinct, times)]
        times = times + gaps * np.random.default_rng(seed).random(len(times))
        moved = [
            each._replace(arrival_s=time)
            for each, time in zip(self.requests, times.tolist(), strict=True)
        ]
        return self._changed(in_order(moved), f"equal times spread, seed {seed}")

    def _changed(self, requests: Sequence[TraceRequest], note: str) -> Trace:
        return replace(self, requests=requests, notes=(*self.notes, note))


def in_order(requests: Sequence[TraceRequest]) -> list[TraceRequest]:
    """As they arrive; those that arrive together stay as they are."""
    return sorted(requests, key=lambda each: each.arrival_s)


class Prompts:
    """Token ids for a trace: those of a block are its name, all others are the request's own."""

    def __init__(self, trace: Trace) -> None:
        self._requests = trace.requests
        self._block_tokens = trace.block_tokens
        named = dict.fromkeys(name for each in trace.requests for name in each.blocks)
        self._ids = {name: len(trace.requests) + rank for rank, name in enumerate(named, 1)}

    def own(self, index: int) -> int:
        """The id that nobody else's tokens have: of the rest of the prompt, and of the output."""
        return index + 1

    def prompt(self, index: int) -> Tokens:
        """int32 [prompt_tokens]."""
        request = self._requests[index]
        tokens = np.full(request.prompt_tokens, self.own(index), dtype=np.int32)
        if request.blocks:
            ids = np.array([self._ids[name] for name in request.blocks], dtype=np.int32)
            shared = ids.repeat(self._block_tokens)[: request.prompt_tokens]
            tokens[: len(shared)] = shared
        return tokens
