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

from cadenza.service.generator import Generator
from cadenza.service.metrics import Histogram

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
        held = counters.total_blocks - counters.free_blocks - counters.cached_blocks
        usage = held / counters.total_blocks if counters.total_blocks else 0.0
        yield self._gauge("num_requests_running", "Rows with a seat.", alive * counters.running)
        yield self._gauge("num_requests_waiting", "Rows without one.", alive * counters.waiting)
        yield self._gauge("kv_cache_usage_perc", "Share of KV blocks held, 0 to 1.", alive * usage)

    def _totals(self) -> Iterator[Metric]:
        counters, metrics = self._generator.engine.counters, self._generator.metrics
        totals = {
            "prompt_tokens": ("Prompt tokens of accepted requests.", metrics.prompt_tokens),
            "generation_tokens": ("Tokens generated.", metrics.generation_tokens),
            "num_preemptions": ("Times a row lost its seat.", counters.preemptions),
            "prefix_cache_queries": (
                "Tokens looked up in the prefix cache.",
                counters.prefix_queries,
            ),
            "prefix_cache_hits": ("Tokens found there.", counters.prefix_hits),
        }
        for name, (text, value) in totals.items():
            family = CounterMetricFamily(_PREFIX + name, text, labels=["model_name"])
            family.add_metric(self._label, value)
            yield family

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
