"""/metrics as Prometheus reads it, over a real socket."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from cadenza.service.http import metrics as exposition
from cadenza.service.http.traffic import Traffic
from cadenza.service.metrics import Metrics
from cadenza.wire.messages import HookUse

from .conftest import OpenServed, Served

COMPLETIONS = "/v1/completions"
TENANT = "x-gateway-inference-fairness-id"

# What dashboards, routers and load tools look for, with the labels that they group by
VLLMS = {
    "gauge": "num_requests_running num_requests_waiting num_requests_waiting_by_reason "
    "kv_cache_usage_perc cache_config_info",
    "counter": "prompt_tokens generation_tokens request_success num_preemptions "
    "prefix_cache_queries prefix_cache_hits prompt_tokens_cached prompt_tokens_by_source "
    "admission_rejections",
    "histogram": "time_to_first_token_seconds inter_token_latency_seconds "
    "request_time_per_output_token_seconds e2e_request_latency_seconds request_queue_time_seconds "
    "request_inference_time_seconds request_prefill_time_seconds request_decode_time_seconds "
    "request_prompt_tokens request_generation_tokens request_max_num_generation_tokens "
    "request_params_n request_params_max_tokens iteration_tokens_total "
    "request_prefill_kv_computed_tokens request_num_preemptions",
}

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


async def scraped(served: Served) -> list[Metric]:
    response = await served.http.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    return list(text_string_to_metric_families(response.text))


def samples(families: Iterable[Metric], prefix: str) -> Samples:
    """By name without the prefix and by labels besides model and engine."""
    told = {}
    for family in families:
        for sample in family.samples:
            if sample.name.startswith(prefix):
                labels = {
                    k: v for k, v in sample.labels.items() if k not in ("model_name", "engine")
                }
                key = sample.name.removeprefix(prefix), frozenset(labels.items())
                assert key not in told, "a sample appears once"
                told[key] = sample.value
    return told


def value(told: Samples, name: str, **labels: str) -> float:
    return told[name, frozenset(labels.items())]


@pytest.mark.parametrize("prefix", ["cadenza:", "vllm:"])
def test_vllms_metrics_have_their_names_kinds_and_labels(run, serve: OpenServed, prefix: str):
    async def main() -> None:
        async with serve() as served:
            await served.http.post(COMPLETIONS, json={"prompt": "x", "max_tokens": 3})
            families = {family.name: family for family in await scraped(served)}

            for kind, names in VLLMS.items():
                for name in names.split():
                    family = families[prefix + name]
                    assert family.type == kind
                    assert family.samples
                    for sample in family.samples:
                        assert sample.labels["model_name"] == "tiny"
                        assert sample.labels.get("engine") == ("0" if prefix == "vllm:" else None)
            [info] = families[f"{prefix}cache_config_info"].samples
            assert info.labels["block_size"] == "16"
            assert info.labels["num_gpu_blocks"] == "64"
            [limits] = families["cadenza:scheduler_limits_info"].samples
            assert limits.labels["max_num_seqs"] == "64"

    run(main())


def test_both_names_tell_the_same(run, serve: OpenServed):
    async def main() -> None:
        async with serve() as served:
            await served.http.post(COMPLETIONS, json={"prompt": "x", "max_tokens": 3, "n": 2})
            families = await scraped(served)
            ours, theirs = samples(families, "cadenza:"), samples(families, "vllm:")

            assert theirs
            assert {key: ours[key] for key in theirs} == theirs

    run(main())


def test_vllms_names_can_be_left_out(run, serve: OpenServed):
    async def main() -> None:
        async with serve(metrics_as_vllm=False) as served:
            assert {family.name.split(":")[0] for family in await scraped(served)} == {"cadenza"}

    run(main())


def test_a_request_shows_in_every_histogram_once(run, serve: OpenServed):
    async def main() -> None:
        async with serve() as served:
            body = {"prompt": "hello", "max_tokens": 3, "ignore_eos": True, "n": 2}
            await served.http.post(COMPLETIONS, json=body)
            told = samples(await scraped(served), "cadenza:")

            for name in VLLMS["histogram"].split():
                expected = {"inter_token_latency_seconds": 4, "iteration_tokens_total": 0}
                assert value(told, f"{name}_count") == expected.get(name, 1), name
            assert value(told, "request_generation_tokens_sum") == 6
            assert value(told, "request_max_num_generation_tokens_sum") == 3
            assert value(told, "request_params_n_sum") == 2
            assert value(told, "prompt_tokens_by_source_total", source="local_cache_hit") == 3

    run(main())


def test_a_token_that_nobody_gets_counts_as_none(run, serve: OpenServed):
    """The engine draws one even where only the prompt is asked about."""

    async def main() -> None:
        async with serve() as served:
            body = {"prompt": "hello", "max_tokens": 0, "prompt_logprobs": 1, "n": 2}
            response = await served.http.post(COMPLETIONS, json=body)
            assert response.json()["usage"]["completion_tokens"] == 0
            assert len(response.json()["choices"][1]["prompt_logprobs"]) > 1
            told = samples(await scraped(served), "cadenza:")

            assert value(told, "generation_tokens_total") == 0
            assert value(told, "time_to_first_token_seconds_count") == 0
            assert value(told, "request_generation_tokens_count") == 1
            assert value(told, "request_generation_tokens_sum") == 0
            assert value(told, "request_params_max_tokens_sum") == 0

    run(main())


def test_steps_and_decisions_are_counted(run, serve: OpenServed):
    async def main() -> None:
        async with serve() as served:
            served.front.engine.told_counters = {"computed_tokens": 40, "steps": 7}
            await served.http.post(COMPLETIONS, json={"prompt": "x", "max_tokens": 2})
            told = samples(await scraped(served), "cadenza:")

            assert value(told, "iteration_tokens_total_sum") == 40
            assert value(told, "steps_total") == 7
            assert value(told, "decisions_total", kind="admitted") == 1
            assert value(told, "decisions_total", kind="preempted") == 0

    run(main())


def test_policies_are_told_apart(run, serve: OpenServed):
    async def main() -> None:
        async with serve() as served:
            served.front.engine.told_hook_uses = (
                HookUse("fcfs", "order_admissions", 9, 0.5, 7, 2),
            )
            await served.http.post(COMPLETIONS, json={"prompt": "x", "max_tokens": 2})
            await served.http.put("/v1/policies/profile", json={"decisions": {"order": "edf"}})
            told = samples(await scraped(served), "cadenza:")

            asked = {"policy": "fcfs", "hook": "order_admissions"}
            assert value(told, "policy_calls_total", **asked) == 9
            assert value(told, "policy_seconds_total", **asked) == 0.5
            assert value(told, "policy_passed_over_total", **asked) == 7
            assert value(told, "policy_excused_total", **asked) == 2
            assert value(told, "policy_active", policy="edf", hook="order_admissions") == 1
            assert ("policy_active", frozenset(asked.items())) not in told
            assert value(told, "policy_active", policy="queue-limit", hook="gate_arrivals") == 1

    run(main())


def test_the_gates_of_the_front_are_among_the_policies(run, serve: OpenServed):
    async def main() -> None:
        async with serve(chosen={"gate_arrivals": "tenant-quota"}) as served:
            await served.http.post(COMPLETIONS, json={"prompt": "x", "max_tokens": 2})
            told = samples(await scraped(served), "cadenza:")

            asked = {"policy": "tenant-quota", "hook": "gate_arrivals"}
            assert value(told, "policy_calls_total", **asked) == 1

    run(main())


def test_tenants_that_nobody_named_are_one(run, serve: OpenServed):
    async def main() -> None:
        async with serve(metrics=Metrics(["acme"])) as served:
            body = {"prompt": "x", "max_tokens": 2}
            before = len(samples(await scraped(served), "cadenza:"))
            for index in range(30):
                tenant = "acme" if index % 3 == 0 else f"made-up-{index}"
                await served.http.post(COMPLETIONS, json=body, headers={TENANT: tenant})
            await served.http.post(COMPLETIONS, json=body)
            text = (await served.http.get("/metrics")).text
            told = samples(text_string_to_metric_families(text), "cadenza:")

            for tenant, count in (("acme", 10), ("other", 20), ("none", 1)):
                assert value(told, "tenant_generation_tokens_total", tenant=tenant) == 2 * count
                name = "tenant_requests_total"
                assert value(told, name, tenant=tenant, finished_reason="length") == count
                name = "tenant_time_to_first_token_seconds_count"
                assert value(told, name, tenant=tenant) == count
            assert "made-up" not in text
            new = [key for key in told if key[0].startswith("http_request")]
            assert len(told) - len(new) <= before

    run(main())


def test_refusals_are_counted_by_tenant(run, serve: OpenServed):
    async def main() -> None:
        options = {"tenant-quota": {"max_queued": 1}}
        async with serve(
            chosen={"gate_arrivals": "tenant-quota"}, options=options, metrics=Metrics(["acme"])
        ) as served:
            body = {"prompt": "x", "n": 2}
            response = await served.http.post(COMPLETIONS, json=body, headers={TENANT: "acme"})
            assert response.status_code == 429
            told = samples(await scraped(served), "cadenza:")
            assert value(told, "tenant_rejections_total", tenant="acme") == 1
            assert value(told, "tenant_rejections_total", tenant="other") == 0

    run(main())


def test_connections_are_counted_by_protocol(run, serve: OpenServed):
    async def main():
        async with serve() as served:
            _, idle = await asyncio.open_connection("127.0.0.1", served.port)
            told = samples(await scraped(served), "cadenza:")
            idle.close()

            assert value(told, "connections", protocol="http") == 2
            assert value(told, "connections", protocol="grpc") == 7

    run(main())


def test_connections_are_counted_off_the_loop_and_not_told_where_nobody_knows(
    run, serve: OpenServed
):
    threads = []

    def num_connections() -> dict[str, int | None]:
        threads.append(threading.get_ident())
        return {"http": 2, "grpc": None}

    async def main() -> None:
        async with serve() as served:
            generator = served.front.generator
            exporter = exposition.Exporter(generator, Traffic(), num_connections)
            text = (await exporter.render()).decode()

            told = re.findall(r"^cadenza:connections\{.*", text, re.MULTILINE)
            assert told == ['cadenza:connections{model_name="tiny",protocol="http"} 2.0']
            assert threads != [threading.get_ident()]

    run(main())


def test_nothing_that_a_client_makes_up_is_a_label(run, serve: OpenServed):
    async def main() -> None:
        async with serve() as served:
            for index in range(20):
                await served.http.get(f"/made-up/{index}")
                await served.http.get(f"/v1/models/made-up-{index}")
                await served.http.request(("PROPFIND", "SEARCH")[index % 2], "/health")
                body = {"prompt": "x", "model": f"made-up-{index}"}
                await served.http.post(COMPLETIONS, json=body)
            response = await served.http.get("/metrics")
            told = samples(text_string_to_metric_families(response.text), "cadenza:")

            assert not re.search("made", response.text, re.IGNORECASE)
            answers: dict[tuple[str, str, str], Any] = {
                ("other", "GET", "404"): 20,
                ("/v1/models/{model:path}", "GET", "404"): 20,
                ("/v1/completions", "POST", "404"): 20,
                ("/health", "other", "405"): 20,
            }
            assert sum(name == "http_requests_total" for name, _ in told) == len(answers)
            for (route, method, status), count in answers.items():
                labels = {"route": route, "method": method, "status": status}
                assert value(told, "http_requests_total", **labels) == count
            assert value(told, "http_request_duration_seconds_count", route="/health") == 20

    run(main())


def test_a_client_that_left_before_its_answer_is_counted(run, serve: OpenServed):
    async def main() -> None:
        async with serve() as served:
            engine = served.front.engine
            engine.auto = False
            _, writer = await served.raw(COMPLETIONS, {"prompt": "x"})
            await engine.until(lambda: bool(engine.waiting))
            writer.close()
            await engine.until(lambda: bool(engine.cancels()))
            labels = {"route": COMPLETIONS, "method": "POST", "status": "gone"}
            async with asyncio.timeout(10):
                while ("http_requests_total", frozenset(labels.items())) not in samples(
                    await scraped(served), "cadenza:"
                ):
                    pass

    run(main())


def test_every_family_explains_itself(run, serve: OpenServed):
    async def main() -> None:
        async with serve() as served:
            for family in await scraped(served):
                assert family.documentation.endswith("."), family.name

    run(main())


class Held:
    """Rendering, of which the test says when it goes on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.goes_on = threading.Event()
        self.begun = threading.Event()
        self._render = exposition.generate_latest
        monkeypatch.setattr(exposition, "generate_latest", self._held)

    def _held(self, registry: CollectorRegistry) -> bytes:
        assert threading.current_thread() is not threading.main_thread(), "it is the loop's"
        self.begun.set()
        assert self.goes_on.wait(10)
        return self._render(registry)


def test_streams_go_on_while_the_text_is_made_of_one_moment(run, serve: OpenServed, monkeypatch):
    async def main() -> None:
        held = Held(monkeypatch)
        async with serve() as served:
            await served.http.post(COMPLETIONS, json={"prompt": "x", "max_tokens": 3})
            scraping = asyncio.create_task(scraped(served))
            assert await asyncio.to_thread(held.begun.wait, 10)
            await served.http.post(COMPLETIONS, json={"prompt": "x", "max_tokens": 3})
            assert not scraping.done()
            held.goes_on.set()
            told = samples(await scraping, "cadenza:")

            assert value(told, "generation_tokens_total") == 3
            assert value(told, "e2e_request_latency_seconds_count") == 1
            assert value(told, "time_to_first_token_seconds_count") == 1
            assert value(told, "http_request_duration_seconds_count", route=COMPLETIONS) == 1
            again = samples(await scraped(served), "cadenza:")
            assert value(again, "e2e_request_latency_seconds_count") == 2

    run(main())


def test_many_scrapes_at_once_keep_one_thread_busy(run, serve: OpenServed, monkeypatch):
    busy: list[int] = []

    async def to_thread(function: Callable[..., bytes], *arguments: Any) -> bytes:
        busy.append(1)
        for _ in range(8):
            await asyncio.sleep(0)
            assert len(busy) == 1
        busy.clear()
        return function(*arguments)

    async def main() -> None:
        async with serve() as served:
            exporter = exposition.Exporter(served.front.generator, Traffic(), dict)
            monkeypatch.setattr(asyncio, "to_thread", to_thread)
            assert len(await asyncio.gather(*[exporter.render() for _ in range(4)])) == 4

    run(main())


def test_the_content_type_is_the_parsers():
    assert exposition.Exporter.content_type == "text/plain; version=0.0.4; charset=utf-8"
