"""What the front measures about requests. Numbers only; `service.http.metrics` exports them.

Every set of labels is closed: reasons and kinds are listed here, and tenants are those that the
operator named. Whoever makes up tenants raises the counts of `OTHER_TENANTS`, and no more.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

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
    *("unparked", "starving", "refused", "stalled", "finished", "interrupted"),
)


class Histogram:
    """Counts of observations by upper bound, as Prometheus wants them."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._latest = 0.0
        self._bucket = bisect_left(self._bounds, self._latest)
        self.sum = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        """The same value so often."""
        if value != self._latest:  # often it is that of the step's row before
            self._latest = value
            self._bucket = bisect_left(self._bounds, value)
        self._counts[self._bucket] += count
        self.sum += count * value

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
        self.engine_restarts = 0
        self.engine_pause_s = 0.0  # in which requests waited for another engine
        self._tokens_at_step = 0
        self._named = {name: TenantMetrics() for name in tenants}
        self._none, self._others = TenantMetrics(), TenantMetrics()
        # A name of those is one label's value, and never a client's way to it
        self.tenants = {NO_TENANT: self._none, OTHER_TENANTS: self._others} | self._named

    @property
    def generation_tokens(self) -> int:
        """Those of all tenants."""
        return sum(tenant.generation_tokens for tenant in self.tenants.values())

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
