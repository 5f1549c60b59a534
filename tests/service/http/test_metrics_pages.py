"""The page of all metrics and the dashboard, against a service that has been through everything."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from cadenza.cli.options import ServeOptions
from cadenza.service.http.families import families
from cadenza.service.http.family import Family
from cadenza.service.http.traffic import Traffic
from cadenza.wire.messages import FaultCount, HookUse

from .conftest import OpenServed, Served

ROOT = Path(__file__).parents[3]
BOARD = json.loads((ROOT / "examples/monitoring/grafana.json").read_text())
METRIC = re.compile(r"cadenza:([a-z0-9_]+)")
BY_RANGE = ("rate", "increase")


def queries() -> list[tuple[str, str]]:
    """(title of the panel, PromQL) of every target, and the variables'."""
    targets = [
        (panel["title"], target["expr"])
        for panel in BOARD["panels"]
        for target in panel.get("targets", ())
    ]
    variables = [
        (variable["name"], variable["query"])
        for variable in BOARD["templating"]["list"]
        if variable["type"] == "query"
    ]
    return targets + variables


async def busy(served: Served) -> None:
    """Let every series appear."""
    engine = served.front.engine
    engine.told_hook_uses = (HookUse("fcfs", "order_admissions", 9, 0.5),)
    engine.told_policy_faults = (FaultCount("edf", "order_admissions", 3, True),)
    engine.told_counters = {"computed_tokens": 40}
    await served.http.post("/v1/completions", json={"prompt": "x", "max_tokens": 3})
    await served.http.get("/health")


@pytest.fixture
def known(run, serve: OpenServed) -> list[Metric]:
    async def main() -> list[Metric]:
        async with serve() as served:
            await busy(served)
            return list(text_string_to_metric_families((await served.http.get("/metrics")).text))

    return run(main())


@pytest.fixture
def declared(run, serve: OpenServed) -> list[Family]:
    async def main() -> list[Family]:
        async with serve() as served:
            return list(families(served.front.generator, Traffic(), {"http": 1}))

    return run(main())


def test_every_query_names_metrics_that_exist(known: list[Metric]):
    labels: dict[str, set[str]] = {}
    for family in known:
        for sample in family.samples:
            labels.setdefault(sample.name, set()).update(sample.labels)
    assert len(queries()) > 40
    for title, query in queries():
        names = [f"cadenza:{name}" for name in METRIC.findall(query)]
        assert names, title
        for name in names:
            assert name in labels, f"{title} asks for {name}"
        there = {label for name in names for label in labels[name]} | {"$tenant", "$model_name"}
        wanted = {
            label.strip()
            for group in re.findall(r"by \(([^)]*)\)", query)
            for label in group.split(",")
        }
        wanted |= set(re.findall(r"[{,]\s*(\w+)=", query))
        assert wanted <= there, f"{title} wants labels {wanted - there}"


def test_every_legend_names_labels_that_its_query_keeps():
    for panel in BOARD["panels"]:
        for target in panel.get("targets", ()):
            shown = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            kept = set(re.findall(r"\w+", " ".join(re.findall(r"by \(([^)]*)\)", target["expr"]))))
            assert shown <= kept, panel["title"]


def test_counters_are_rates_and_gauges_are_not(known: list[Metric]):
    kinds = {sample.name: family.type for family in known for sample in family.samples}
    for title, query in queries():
        if query.startswith("label_values"):
            continue
        for match in METRIC.finditer(query):
            is_rate = query[: match.start()].endswith(tuple(f"{name}(" for name in BY_RANGE))
            is_gauge = kinds[match[0]] == "gauge"
            assert is_rate != is_gauge, f"{title}: {match[0]}"


def test_what_is_mounted_is_there_and_listens_on_loopback():
    folder = ROOT / "examples/monitoring"
    services = yaml.safe_load((folder / "compose.yaml").read_text())["services"]
    mounted = [each.split(":")[0] for service in services.values() for each in service["volumes"]]
    assert mounted
    for path in mounted:
        assert (folder / path).exists(), path
    source = folder / "provisioning/datasources/prometheus.yaml"
    [prometheus] = yaml.safe_load(source.read_text())["datasources"]
    address = prometheus["url"].removeprefix("http://")
    assert f"--web.listen-address={address}" in services["prometheus"]["command"]
    assert services["grafana"]["environment"]["GF_SERVER_HTTP_ADDR"] == "127.0.0.1"
    scraped = yaml.safe_load((folder / "prometheus.yml").read_text())["scrape_configs"]
    port = ServeOptions().port
    assert [job["static_configs"] for job in scraped] == [[{"targets": [f"127.0.0.1:{port}"]}]]


def test_panels_do_not_overlap():
    taken: set[tuple[int, int]] = set()
    ids = [panel["id"] for panel in BOARD["panels"]]
    assert len(ids) == len({*ids})
    for panel in BOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells


def test_the_page_has_every_metric(declared: list[Family]):
    lines = (ROOT / "docs/metrics.md").read_text().splitlines()
    told = [line for line in lines if line.startswith("| `")]

    assert told == [row(family) for family in declared]


def row(family: Family) -> str:
    name = family.name + ("_total" if family.kind == "counter" else "")
    labels = ", ".join(f"`{label}`" for label in family.labels) or "-"
    vllm = "yes" if family.is_vllms else "-"
    return f"| `{name}` | {family.kind} | {labels} | {vllm} | {family.text} |"
