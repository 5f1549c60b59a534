"""What the front measures about requests. Numbers only; `service.http.metrics` exports them.

Every set of labels is closed: reasons and kinds are listed here, and tenants are those that the
operator named. Whoever makes up tenants raises the counts of `OTHER_TENANTS`, and no more.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from cadenza.wire.messages import Counters, Decision

# vLLM's bounds, with finer ones where a small model is: below 10 ms, and requests below 300 ms
TTFT_S = (
    *(0.001, 0.0025, 0.005, 0.0075, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
TOKEN_S = (
    *(0.001, 0.0025, 0.005, 0.0075, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5),
    *(0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
REQUEST_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5),
    *(5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
TOKENS = tuple(m * 10**e for e in range(6) for m in (1, 2, 5))  # up to half a million
ITERATION_TOKENS = (1, *(8 << shift for shift in range(12)))  # up to 16,384
FEW = (1, 2, 3, 4, 5, 10, 20)

FINISHED_REASONS = ("stop", "length", "abort", "deadline", "shed", "error")
QUEUE_FULL, SHED = "max_num_queued_reqs", "shed"  # the former as vLLM has it
NO_TENANT, OTHER_TENANTS = "none", "other"
STREAM_PROTOCOLS = ("http", "grpc")
STREAM_STATES = ("running", "ended")  # when a stream was given up that nobody went on with
RESUMPTION_REFUSALS = ("unknown", "conflict", "offset", "gone")
DECISION_KINDS = (
    *("arrived", "admitted", "preempted", "displaced", "resumed", "host_copy_dropped", "parked"),
    *("unparked", "starving", "refused", "stalled", "finished"),
)


class Histogram:
    """Counts of observations by upper bound, as Prometheus wants them."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    def copy(self) -> Histogram:
        """The same, which later observations do not change."""
        copied = Histogram(self._bounds)
        copied._counts = self._counts.copy()
        copied.sum = self.sum
        return copied

    def cumulative(self) -> list[tuple[str, float]]:
        """(upper bound, observations up to it), the last bound being +Inf."""
        total, buckets = 0, []
        for bound, count in zip((*map(float, self._bounds), "+Inf"), self._counts, strict=True):
            total += count
            buckets.append((str(bound), float(total)))
        return buckets


class TenantMetrics:
    """Totals of one tenant, or of all that have none, or no name here."""

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.finished = dict.fromkeys(FINISHED_REASONS, 0)
        self.refused = 0
        self.time_to_first_token = Histogram(TTFT_S)
        self.queue_time = Histogram(REQUEST_S)


class Metrics:
    """Totals since the front started."""

    def __init__(self, tenants: Iterable[str] = ()) -> None:
        """`tenants`: those that get series of their own, in place of others of their name."""
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.cached_tokens = 0  # of prompts, at their first admission
        self.computed_prompt_tokens = 0  # those that were not
        self.finished = dict.fromkeys(FINISHED_REASONS, 0)
        self.refused = {QUEUE_FULL: 0, SHED: 0}  # calls, by what refused them; gates by their names
        self.decisions = dict.fromkeys(DECISION_KINDS, 0)
        self.streams_resumed = dict.fromkeys(STREAM_PROTOCOLS, 0)
        self.streams_expired = dict.fromkeys(STREAM_STATES, 0)
        self.resumptions_refused = dict.fromkeys(RESUMPTION_REFUSALS, 0)
        self.time_to_first_token = Histogram(TTFT_S)
        self.inter_token_latency = Histogram(TOKEN_S)
        self.queue_time = Histogram(REQUEST_S)
        self.iteration_tokens = Histogram(ITERATION_TOKENS)
        # of requests that ended by themselves
        self.request_latency = Histogram(REQUEST_S)
        self.inference_time = Histogram(REQUEST_S)
        self.prefill_time = Histogram(REQUEST_S)
        self.decode_time = Histogram(REQUEST_S)
        self.time_per_output_token = Histogram(TOKEN_S)
        self.request_prompt_tokens = Histogram(TOKENS)
        self.request_computed_prompt_tokens = Histogram(TOKENS)
        self.request_generation_tokens = Histogram(TOKENS)
        self.longest_choice = Histogram(TOKENS)
        self.params_n = Histogram(FEW)
        self.params_max_tokens = Histogram(TOKENS)
        self.num_preemptions = Histogram(FEW)
        self._tokens_at_step = 0
        self._named = {name: TenantMetrics() for name in tenants}
        self._none, self._others = TenantMetrics(), TenantMetrics()
        # A name of those is one label's value, and never a client's way to it
        self.tenants = {NO_TENANT: self._none, OTHER_TENANTS: self._others} | self._named

    def of_tenant(self, name: str) -> TenantMetrics:
        """Those of a tenant, which may be the ones of all others."""
        if not name:
            return self._none
        return self._named.get(name, self._others)

    def count_step(self, counters: Counters) -> None:
        """A step told these counters."""
        tokens = counters.computed_tokens - self._tokens_at_step
        self._tokens_at_step = counters.computed_tokens
        if tokens > 0:
            self.iteration_tokens.observe(tokens)

    def count_decisions(self, decisions: Iterable[Decision]) -> None:
        """The scheduler decided this."""
        for decision in decisions:
            if decision.kind in self.decisions:
                self.decisions[decision.kind] += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What was measured of a request. Times are of the timer's clock; None: it never came to it."""

    reason: str  # one of FINISHED_REASONS
    arrived_s: float
    seated_s: float | None
    first_s: float | None  # token, of any choice
    last_s: float | None
    ended_s: float
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    n: int
    max_tokens: int
    preemptions: int


@dataclass(slots=True)
class _Tokens:
    """When a choice's tokens came."""

    first_s: float
    last_s: float
    count: int = 1


class RequestTimer:
    """Times one request, from its arrival on, into `Metrics`."""

    def __init__(self, metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> None:
        self._metrics = metrics
        self._clock = clock
        self._arrived_s = clock()
        self._tenant = metrics.of_tenant("")
        self._prompt_tokens = 0
        self._cached_tokens = 0
        self._max_tokens = 0
        self._n = 1
        self._preemptions = 0
        self._seated_s: float | None = None
        self._first_s: float | None = None
        self._choices: dict[int, _Tokens] = {}
        self._on_end: Callable[[Ended], None] | None = None

    def watch(self, on_end: Callable[[Ended], None]) -> None:
        """Tell of the request once it has ended."""
        self._on_end = on_end

    def launched(self, *, tenant: str, prompt_tokens: int, n: int, max_tokens: int) -> None:
        """The request goes to the engine, and this is what it wants."""
        self._tenant = self._metrics.of_tenant(tenant)
        self._prompt_tokens, self._n, self._max_tokens = prompt_tokens, n, max_tokens

    def accepted(self) -> None:
        """The engine has it, and whatever came in the same call."""
        self._metrics.prompt_tokens += self._prompt_tokens
        self._tenant.prompt_tokens += self._prompt_tokens

    def seated(self, cached_tokens: int) -> None:
        """One of its choices got the first seat of all, with so much of the prompt computed."""
        self._seated_s = self._clock()
        self._cached_tokens = cached_tokens
        self._metrics.cached_tokens += cached_tokens
        self._metrics.computed_prompt_tokens += max(0, self._prompt_tokens - cached_tokens)
        waited_s = self._seated_s - self._arrived_s
        self._metrics.queue_time.observe(waited_s)
        self._tenant.queue_time.observe(waited_s)

    def preempted(self) -> None:
        """One of its choices lost its seat."""
        self._preemptions += 1

    def token(self, choice: int) -> None:
        """A token of a choice arrived. The first of all choices is the request's first token."""
        now_s = self._clock()
        metrics = self._metrics
        metrics.generation_tokens += 1
        self._tenant.generation_tokens += 1
        tokens = self._choices.get(choice)
        if tokens is None:
            self._begin(choice, now_s)
        else:
            metrics.inter_token_latency.observe(now_s - tokens.last_s)
            tokens.last_s = now_s
            tokens.count += 1

    def _begin(self, choice: int, now_s: float) -> None:
        if not self._choices:
            self._first_s = now_s
            self._metrics.time_to_first_token.observe(now_s - self._arrived_s)
            self._tenant.time_to_first_token.observe(now_s - self._arrived_s)
        self._choices[choice] = _Tokens(now_s, now_s)

    def ended(self, reason: str) -> None:
        """The request is over, for one of FINISHED_REASONS."""
        self._metrics.finished[reason] += 1
        self._tenant.finished[reason] += 1
        if self._on_end is not None:
            self._on_end(self._measured(reason))
        if reason in ("stop", "length"):
            self._observe_whole(self._clock())

    def _measured(self, reason: str) -> Ended:
        choices = self._choices.values()
        return Ended(
            reason=reason,
            arrived_s=self._arrived_s,
            seated_s=self._seated_s,
            first_s=self._first_s,
            last_s=max((tokens.last_s for tokens in choices), default=None),
            ended_s=self._clock(),
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached_tokens,
            generated_tokens=sum(tokens.count for tokens in choices),
            n=self._n,
            max_tokens=self._max_tokens,
            preemptions=self._preemptions,
        )

    def _observe_whole(self, now_s: float) -> None:
        metrics, choices = self._metrics, self._choices.values()
        metrics.request_latency.observe(now_s - self._arrived_s)
        metrics.request_prompt_tokens.observe(self._prompt_tokens)
        metrics.request_computed_prompt_tokens.observe(
            max(0, self._prompt_tokens - self._cached_tokens)
        )
        metrics.request_generation_tokens.observe(sum(tokens.count for tokens in choices))
        metrics.longest_choice.observe(max((tokens.count for tokens in choices), default=0))
        metrics.params_n.observe(self._n)
        metrics.params_max_tokens.observe(self._max_tokens)
        metrics.num_preemptions.observe(self._preemptions)
        if self._seated_s is None or self._first_s is None:
            return
        last_s = max(tokens.last_s for tokens in choices)
        metrics.inference_time.observe(last_s - self._seated_s)
        metrics.prefill_time.observe(self._first_s - self._seated_s)
        metrics.decode_time.observe(last_s - self._first_s)
        further = sum(tokens.count - 1 for tokens in choices)
        if further:
            decoding_s = sum(tokens.last_s - tokens.first_s for tokens in choices)
            metrics.time_per_output_token.observe(decoding_s / further)
