"""What the front measures about requests. Numbers only; `service.http.metrics` exports them."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Sequence

_TTFT_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160)
_TOKEN_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2.5, 5, 10)
_REQUEST_S = (0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 300, 960)
FINISHED_REASONS = ("stop", "length", "abort", "deadline", "shed", "error")
QUEUE_FULL, SHED = "max_num_queued_reqs", "shed"  # the former as vLLM has it


class Histogram:
    """Counts of observations by upper bound, as Prometheus wants them."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    def cumulative(self) -> list[tuple[str, float]]:
        """(upper bound, observations up to it), the last bound being +Inf."""
        total, buckets = 0, []
        for bound, count in zip((*self._bounds, "+Inf"), self._counts, strict=True):
            total += count
            buckets.append((str(bound), float(total)))
        return buckets


class Metrics:
    """Totals since the front started."""

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.finished = dict.fromkeys(FINISHED_REASONS, 0)
        self.refused = {QUEUE_FULL: 0, SHED: 0}  # calls, by what refused them; gates by their names
        self.time_to_first_token = Histogram(_TTFT_S)
        self.inter_token_latency = Histogram(_TOKEN_S)
        self.request_latency = Histogram(_REQUEST_S)


class RequestTimer:
    """Times one request, from its arrival on, into `Metrics`."""

    def __init__(self, metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> None:
        self._metrics = metrics
        self._clock = clock
        self._arrived_s = clock()
        self._last_token_s: dict[int, float] = {}  # by choice

    def token(self, choice: int) -> None:
        """A token of a choice arrived. The first of all choices is the request's first token."""
        now_s = self._clock()
        self._metrics.generation_tokens += 1
        if not self._last_token_s:
            self._metrics.time_to_first_token.observe(now_s - self._arrived_s)
        elif choice in self._last_token_s:
            self._metrics.inter_token_latency.observe(now_s - self._last_token_s[choice])
        self._last_token_s[choice] = now_s

    def ended(self, reason: str) -> None:
        """The request is over, for one of FINISHED_REASONS."""
        self._metrics.finished[reason] += 1
        if reason in ("stop", "length"):
            self._metrics.request_latency.observe(self._clock() - self._arrived_s)
