"""When things happened to one request."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cadenza.service.metrics import Metrics, TenantMetrics


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


class TokenTimes:
    """When the tokens of one choice came. `RequestTimer` makes them."""

    __slots__ = ("_begin", "count", "first_s", "gaps", "last_s", "tenant")

    def __init__(
        self, metrics: Metrics, tenant: TenantMetrics, begin: Callable[[float], None]
    ) -> None:
        self.count = 0
        self.first_s = self.last_s = 0.0  # of tokens, once there are any
        self.gaps = metrics.inter_token_latency
        self.tenant = tenant
        self._begin = begin

    def token(self, now_s: float) -> None:
        """A token came, by the timer's clock. The first of all choices is the request's first."""
        self.tenant.generation_tokens += 1
        if self.count:
            self.gaps.observe(now_s - self.last_s)
        else:
            self.first_s = now_s
            self._begin(now_s)
        self.last_s = now_s
        self.count += 1


class JointTimes:
    """The times of rows whose tokens come together, after the last one of each did so at `last_s`.

    Metrics know at once, the rows by `settle`.
    """

    def __init__(self, rows: Sequence[TokenTimes], last_s: float) -> None:
        """`rows`: of one service, at least one."""
        self._rows = rows
        self._last_s = last_s
        self._count = 0  # of tokens that rows have not been told of
        self._gaps = rows[0].gaps
        self._tenants = Counter(times.tenant for times in rows)

    def token(self, now_s: float) -> None:
        """A token came to each."""
        self._gaps.observe(now_s - self._last_s, len(self._rows))
        for tenant, num_rows in self._tenants.items():
            tenant.generation_tokens += num_rows
        self._last_s = now_s
        self._count += 1

    def settle(self) -> None:
        """Let the rows know."""
        for times in self._rows:
            times.last_s = self._last_s
            times.count += self._count
        self._count = 0


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
        self._choices: list[TokenTimes] = []
        self._on_end: list[Callable[[Ended], None]] = []

    def watch(self, on_end: Callable[[Ended], None]) -> None:
        """Tell of the request once it has ended. Whoever is told must not raise."""
        self._on_end.append(on_end)

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

    def choice(self) -> TokenTimes:
        """Those of a further choice, once it is known whom the request is for."""
        times = TokenTimes(self._metrics, self._tenant, self._begin)
        self._choices.append(times)
        return times

    def _begin(self, now_s: float) -> None:
        if self._first_s is None:
            self._first_s = now_s
            self._metrics.time_to_first_token.observe(now_s - self._arrived_s)
            self._tenant.time_to_first_token.observe(now_s - self._arrived_s)

    def ended(self, reason: str) -> None:
        """The request is over, for one of FINISHED_REASONS."""
        self._metrics.finished[reason] += 1
        self._tenant.finished[reason] += 1
        if self._on_end:
            measured = self._measured(reason)
            for on_end in self._on_end:
                on_end(measured)
        if reason in ("stop", "length"):
            self._observe_whole(self._clock())
        # They lead back here: without them nothing waits for the garbage collector
        self._choices, self._on_end = [], []

    def _measured(self, reason: str) -> Ended:
        choices = self._begun()
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

    def _begun(self) -> list[TokenTimes]:
        return [times for times in self._choices if times.count]

    def _observe_whole(self, now_s: float) -> None:
        metrics, choices = self._metrics, self._begun()
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
