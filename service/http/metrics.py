"""/metrics: vLLM's names with our prefix and, unless that is unwanted, with vLLM's own as well.

What the engine told last and what the front has counted is copied on the loop, and becomes text in
a thread, which takes a hundred times as long: streams go on meanwhile. Each family is copied once
and shown under either prefix, so that the two cannot differ.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence

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
from cadenza.service.http.families import families
from cadenza.service.http.family import Family
from cadenza.service.http.traffic import NumConnections, Traffic

_OURS, _THEIRS = "cadenza:", "vllm:"
_ENGINE = {"engine": "0"}  # a label that vLLM's series have


class Exporter:
    """Renders one generator's metrics. Its registries are its own: nothing global to clash with."""

    content_type = CONTENT_TYPE_PLAIN_0_0_4

    def __init__(
        self,
        generator: Generator,
        traffic: Traffic,
        num_connections: NumConnections,
        *,
        as_vllm: bool = True,
    ) -> None:
        """`as_vllm`: whether vLLM's names are used beside ours."""
        self._generator = generator
        self._traffic = traffic
        self._num_connections = num_connections
        self._as_vllm = as_vllm
        self._labels = {"model_name": generator.model_name}
        self._rendering = asyncio.Lock()

    async def render(self) -> bytes:
        """The text. However many ask, one thread at a time competes with the loop."""
        async with self._rendering:
            # gRPC's core takes some 20 ms to tell of 3,000
            connections = await asyncio.to_thread(self._num_connections)
            now = families(self._generator, self._traffic, connections)
            known = [family.copy() for family in now]
            return await asyncio.to_thread(self._text, known)

    def _text(self, known: Sequence[Family]) -> bytes:
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Collector(known, self._labels, self._as_vllm))
        return generate_latest(registry)


class _Collector(Collector):
    def __init__(self, known: Sequence[Family], labels: Mapping[str, str], as_vllm: bool) -> None:
        self._known = known
        self._labels = labels
        self._as_vllm = as_vllm

    def collect(self) -> Iterator[Metric]:
        for family in self._known:
            yield _metric(_OURS + family.name, family, self._labels)
        if self._as_vllm:
            for family in self._known:
                if family.is_vllms:
                    yield _metric(_THEIRS + family.name, family, {**self._labels, **_ENGINE})


def _metric(name: str, family: Family, common: Mapping[str, str]) -> Metric:
    labels = [*common, *family.labels]
    values = list(common.values())
    match family.kind:
        case "gauge":
            return _filled(GaugeMetricFamily(name, family.text, labels=labels), family, values)
        case "counter":
            return _filled(CounterMetricFamily(name, family.text, labels=labels), family, values)
        case "histogram":
            metric = HistogramMetricFamily(name, family.text, labels=labels)
            for sample, histogram in family.histograms:
                metric.add_metric([*values, *sample], histogram.cumulative(), histogram.sum)
            return metric


def _filled(
    metric: GaugeMetricFamily | CounterMetricFamily, family: Family, common: Sequence[str]
) -> Metric:
    samples: Iterable[tuple[Sequence[str], float]] = family.samples
    for sample, value in samples:
        metric.add_metric([*common, *sample], value)
    return metric
