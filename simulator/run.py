"""What a simulated run brought, request by request and step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cadenza.scheduler.config import SchedulerConfig
from cadenza.scheduler.report import Statistics
from cadenza.simulator.trace import Span, Trace

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

# Of `Statistics`, those that count what has happened
COUNTED = (
    "steps",
    "preemptions",
    "swaps",
    "computed_tokens",
    "recomputed_tokens",
    "generated_tokens",
    "prefix_queries",
    "prefix_hits",
    "decisions_lost",
    "policy_faults",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """One element a forward pass, in time order."""

    began_s: FloatArray
    took_s: FloatArray
    tokens: IntArray  # computed
    running: IntArray  # rows with a seat
    waiting: IntArray  # rows without one, once this step's admissions are over
    held_blocks: IntArray  # by running rows

    @property
    def end_s(self) -> float:
        """Of the last one; 0 without any."""
        return float(self.began_s[-1] + self.took_s[-1]) if len(self.took_s) else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """One element an output token, as they were sampled."""

    request: IntArray  # index in the trace
    time_s: FloatArray

    def part(self, span: Span, requests: slice) -> Tokens:
        """Those of these requests that were sampled in this time, which begins anew."""
        begin, end = np.searchsorted(self.time_s, span)
        request, time_s = self.request[begin:end], self.time_s[begin:end]
        own = (requests.start <= request) & (request < requests.stop)
        return Tokens(request=request[own] - requests.start, time_s=time_s[own] - span.begin_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A trace under a profile. Arrays by request have one element each, in the trace's order.

    Times are from the trace's beginning; nan: it never came to that. Of a run that was measured for
    a while only, all of it is that while's: requests that arrived in it, steps that began in it.
    """

    name: str  # of the profile
    trace: Trace
    parts: Sequence[int]  # requests of each seed, where there are several
    ends_s: Sequence[float]  # of each part's last step; a request may end later than that
    config: SchedulerConfig
    admitted_s: FloatArray  # first seat
    first_s: FloatArray  # token
    last_s: FloatArray
    generated: IntArray  # tokens
    longest_gap_s: FloatArray  # between two tokens; nan with fewer
    preemptions: IntArray
    refused: Sequence[tuple[int, str]]  # requests that could not run at all, and why
    failed: Sequence[int]  # requests that the watchdog gave up
    causes: dict[str, int]  # of preemptions -> how often
    swapped_tokens: int  # that were copied to the host, in whole blocks
    statistics: Statistics  # at the end; what `COUNTED` names, since the beginning
    steps: Steps
    tokens: Tokens

    @property
    def arrival_s(self) -> FloatArray:
        return self.trace.arrival_s

    @property
    def ttft_s(self) -> FloatArray:
        """From arrival to the first token."""
        return self.first_s - self.arrival_s

    @property
    def tpot_s(self) -> FloatArray:
        """Mean time between tokens; nan of a request with fewer than two."""
        further = np.where(self.generated > 1, self.generated - 1.0, np.nan)
        return (self.last_s - self.first_s) / further

    @property
    def e2e_s(self) -> FloatArray:
        """From arrival to the last token."""
        return self.last_s - self.arrival_s

    @property
    def is_whole(self) -> npt.NDArray[np.bool_]:
        """Whether a request got all that the trace has of it."""
        whole: npt.NDArray[np.bool_] = self.generated == self.trace.output_tokens
        return whole

    @property
    def part_end_s(self) -> FloatArray:
        """By request, the end of its part: what is later there is another part's time."""
        return np.repeat(self.ends_s, self.parts)

    @property
    def span_s(self) -> float:
        """From the trace's beginning to the last step's end."""
        return self.steps.end_s

    @property
    def queued_s(self) -> float:
        """Time in which somebody waited although a step was under way."""
        return float(self.steps.took_s[self.steps.waiting > 0].sum())


def longest_gaps(tokens: Tokens, num_requests: int) -> FloatArray:
    """By request, the longest time between two of its tokens; nan where there are not two."""
    order = np.argsort(tokens.request, kind="stable")
    request, time_s = tokens.request[order], tokens.time_s[order]
    same = request[1:] == request[:-1]
    longest = np.full(num_requests, -np.inf)
    np.maximum.at(longest, request[1:][same], np.diff(time_s)[same])
    return np.where(np.isinf(longest), np.nan, longest)
