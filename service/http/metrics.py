"""/metrics: vLLM's names with our prefix, so that its dashboards need one replacement."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from cadenza.policies.runner import FaultCount
from cadenza.service.generator import Generator
from cadenza.service.metrics import Histogram
from cadenza.wire import messages

_PREFIX = "cadenza:"


class Exporter:
    """Renders one generator's metrics. Its registry is its own: nothing global to clash with."""

    content_type = CONTENT_TYPE_PLAIN_0_0_4

    def __init__(self, generator: Generator) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_Collector(generator))

    def render(self) -> bytes:
        return generate_latest(self._registry)


class _Collector(Collector):
    def __init__(self, generator: Generator) -> None:
        self._generator = generator
        self._label = [generator.model_name]

    def collect(self) -> Iterator[Metric]:
        yield from self._gauges()
        yield from self._totals()
        yield self._preemptions()
        yield self._rejections()
        yield from self._policies()
        yield self._finished()
        metrics = self._generator.metrics
        yield self._histogram("time_to_first_token_seconds", metrics.time_to_first_token)
        yield self._histogram("inter_token_latency_seconds", metrics.inter_token_latency)
        yield self._histogram("e2e_request_latency_seconds", metrics.request_latency)

    def _gauges(self) -> Iterator[Metric]:
        engine = self._generator.engine
        counters = engine.counters
        # What the engine says, not what the front believes: a row that only the front forgot shows.
        # A dead engine says nothing more, and holds nothing.
        alive = engine.failure is None
        limits = engine.limits
        held = counters.total_blocks - counters.free_blocks - counters.cached_blocks
        held_by_host = counters.total_host_blocks - counters.free_host_blocks
        gauges = {
            "num_requests_running": ("Rows with a seat.", counters.running),
            "num_requests_waiting": ("Rows without one.", counters.waiting),
            "num_requests_parked": ("Rows whose reader takes no tokens now.", counters.parked),
            "num_requests_swapped": ("Preempted rows with a copy on the host.", counters.swapped),
            "kv_cache_usage_perc": (
                "Share of KV blocks held, 0 to 1.",
                _share(held, counters.total_blocks),
            ),
            "host_kv_cache_usage_perc": (
                "Share of host blocks held, 0 to 1.",
                _share(held_by_host, counters.total_host_blocks),
            ),
            "num_host_blocks_used": ("Host blocks that hold a copy.", held_by_host),
            "num_host_blocks": (
                "Host blocks for preempted rows.",
                limits.num_host_blocks if limits else 0,  # known before there is a step
            ),
        }
        for name, (text, value) in gauges.items():
            yield self._gauge(name, text, alive * value)

    def _totals(self) -> Iterator[Metric]:
        counters, metrics = self._generator.engine.counters, self._generator.metrics
        policies = self._generator.policies
        totals = {
            "prompt_tokens": ("Prompt tokens of accepted requests.", metrics.prompt_tokens),
            "generation_tokens": ("Tokens generated.", metrics.generation_tokens),
            "num_preemptions": ("Times a row lost its seat.", counters.preemptions),
            "recomputed_tokens": (
                "Tokens computed again after a preemption.",
                counters.recomputed_tokens,
            ),
            "prefix_cache_queries": (
                "Tokens looked up in the prefix cache.",
                counters.prefix_queries,
            ),
            "prefix_cache_hits": ("Tokens found there.", counters.prefix_hits),
            "decisions_lost": (
                "Records of decisions that the engine had no room for.",
                counters.decisions_lost,
            ),
            "policy_faults": (
                "Decisions that a policy failed to take: the default took them.",
                counters.policy_faults + sum(count.faults for count in policies.faults),
            ),
            "timeline_records_dropped": (
                "Records of decisions cut from the timelines of known generations.",
                self._generator.num_records_dropped,
            ),
        }
        for name, (text, value) in totals.items():
            family = CounterMetricFamily(_PREFIX + name, text, labels=["model_name"])
            family.add_metric(self._label, value)
            yield family

    def _preemptions(self) -> Metric:
        """What `num_preemptions` counts, by what became of the row's blocks."""
        counters = self._generator.engine.counters
        name, text = _PREFIX + "num_preemptions_by_kind", "Times a row lost its seat, by kind."
        family = CounterMetricFamily(name, text, labels=["model_name", "kind"])
        family.add_metric([*self._label, "swap"], counters.swaps)
        family.add_metric([*self._label, "recompute"], counters.preemptions - counters.swaps)
        return family

    def _rejections(self) -> Metric:
        """vLLM's reason for a full queue, `shed` for who made room for another, or the gate."""
        name, text = _PREFIX + "admission_rejections", "Calls refused, by what refused them."
        family = CounterMetricFamily(name, text, labels=["model_name", "reason"])
        gates = dict.fromkeys(self._generator.policies.profile.gates, 0)
        for reason, count in (gates | self._generator.metrics.refused).items():
            family.add_metric([*self._label, reason], count)
        return family

    def _policies(self) -> Iterator[Metric]:
        """What `policy_faults` counts, by whose it was; policies that never failed do not show.

        Each process has instances of its own; a policy shows as quarantined if it is in either.
        """
        counts: list[FaultCount | messages.FaultCount] = [*self._generator.engine.policy_faults]
        counts += self._generator.policies.faults
        labels = ["model_name", "policy", "hook"]
        text = "Decisions that a policy failed to take, by policy and hook."
        faults = CounterMetricFamily(_PREFIX + "policy_faults_by_hook", text, labels=labels)
        for count in counts:
            faults.add_metric([*self._label, count.policy, count.hook], count.faults)
        yield faults
        text = "1 while a policy that failed too often is not asked."
        quarantined = GaugeMetricFamily(_PREFIX + "policy_quarantined", text, labels=labels[:2])
        out = {count.policy for count in counts if count.quarantined}
        for policy in dict.fromkeys(count.policy for count in counts):
            quarantined.add_metric([*self._label, policy], policy in out)
        yield quarantined

    def _finished(self) -> Metric:
        labels = ["model_name", "finished_reason"]
        family = CounterMetricFamily(_PREFIX + "request_success", "Requests ended.", labels=labels)
        for reason, count in self._generator.metrics.finished.items():
            family.add_metric([*self._label, reason], count)
        return family

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(_PREFIX + name, text, labels=["model_name"])
        family.add_metric(self._label, value)
        return family

    def _histogram(self, name: str, histogram: Histogram) -> Metric:
        family = HistogramMetricFamily(_PREFIX + name, name, labels=["model_name"])
        family.add_metric(self._label, histogram.cumulative(), histogram.sum)
        return family


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
