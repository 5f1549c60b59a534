"""prometheus_client's parser over /metrics: `check_*` functions, each given the page's families."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from math import inf
from urllib.request import urlopen

from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from tests.clients.checks import main

# What load tools and routers read by these names
READ_BY_OTHERS = {
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:prompt_tokens",
    "vllm:generation_tokens",
    "vllm:time_to_first_token_seconds",
    "vllm:e2e_request_latency_seconds",
    "vllm:request_success",
}

Families = list[Metric]


def connect(url: str) -> Families:
    """The families of the page."""
    with urlopen(f"{url}/metrics", timeout=30) as response:
        assert response.headers["content-type"].startswith("text/plain; version=")
        return list(text_string_to_metric_families(response.read().decode()))


def check_families(families: Families) -> None:
    """Every family is told once, with a type and a help text."""
    assert max(Counter(family.name for family in families).values()) == 1
    for family in families:
        assert family.type in ("counter", "gauge", "histogram"), family
        assert family.documentation, family


def check_samples(families: Families) -> None:
    """No sample comes twice, and none counts below zero."""
    for family in families:
        seen = Counter((each.name, *sorted(each.labels.items())) for each in family.samples)
        assert not seen or max(seen.values()) == 1, family.name
        if family.type != "gauge":
            assert all(each.value >= 0 for each in family.samples), family.name


def check_histograms(families: Families) -> None:
    """Buckets grow with their bounds, and the last is the count."""
    for family in families:
        if family.type == "histogram":
            for buckets, count in histograms(family):
                ordered = [value for _, value in sorted(buckets.items())]
                assert ordered == sorted(ordered), family.name
                assert buckets[inf] == count, family.name


def histograms(family: Metric) -> Iterator[tuple[dict[float, float], float]]:
    """Each set of labels: counts by upper bound, and the count of all."""
    buckets: defaultdict[tuple[str, ...], dict[float, float]] = defaultdict(dict)
    counts: dict[tuple[str, ...], float] = {}
    for each in family.samples:
        key = tuple(f"{name}={value}" for name, value in each.labels.items() if name != "le")
        if each.name.endswith("_bucket"):
            buckets[key][float(each.labels["le"])] = each.value
        elif each.name.endswith("_count"):
            counts[key] = each.value
    for key, count in counts.items():
        yield buckets[key], count


def check_names(families: Families) -> None:
    """The names that other tools read are there."""
    assert {family.name for family in families} >= READ_BY_OTHERS


if __name__ == "__main__":
    main(globals(), connect)
