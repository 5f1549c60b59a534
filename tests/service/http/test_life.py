"""Disconnects, failures, health, metrics and shutdown over real sockets."""

from __future__ import annotations

import asyncio
import json
import random
import threading

import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families
from structlog.contextvars import get_contextvars
from structlog.testing import capture_logs

from cadenza.service.http.connection import ConnectionLimits
from cadenza.service.limits import Limits
from cadenza.service.request import GenerationRequest
from cadenza.wire.messages import FaultCount
from tests.service.http.conftest import request_bytes
from tests.service.waiting import until

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
CHAT_TOO = {"messages": [{"role": "user", "content": "x"}]}
LONG = {"prompt": "x", "max_tokens": 200, "ignore_eos": True}


def label_of(sample) -> str:
    """The one label, besides the model, that any of our samples has."""
    return "".join(sample.labels.get(name, "") for name in ("finished_reason", "kind", "le"))


async def metrics_of(served) -> dict[tuple[str, str], float]:
    text = (await served.http.get("/metrics")).text
    return {
        (sample.name, label_of(sample)): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_crowd_of_rude_clients_leaves_nothing(run, serve):
    async def client(served, rng):
        stream = rng.random() < 0.5
        body = {**LONG, "stream": stream, "n": rng.randint(1, 3), "stop": ["q"]}
        reader, writer = await served.raw(rng.choice([CHAT, COMPLETIONS]), {**body, **CHAT_TOO})
        if rng.random() < 0.7 and stream:
            await reader.read(rng.randint(1, 4000))
        writer.close()

    async def main():
        rng = random.Random(7)
        async with serve(limits=Limits(max_queued=10_000)) as served:
            engine = served.front.engine
            engine.seats = 20
            with capture_logs() as logs:
                await asyncio.gather(*(client(served, rng) for _ in range(150)))
                polite = await served.http.post(COMPLETIONS, json={"prompt": "x"})
                assert polite.status_code == 200
                await engine.until(served.front.is_clean)
            assert {(log["log_level"], log["event"]) for log in logs} == {("info", "client_gone")}
            assert sum(served.front.generator.metrics.finished.values()) > 30

    run(main())


def test_a_client_that_leaves_while_its_prompt_is_encoded_is_forgotten(run, serve, monkeypatch):
    async def main():
        async with serve() as served:
            entered, leave = threading.Event(), threading.Event()

            def slow(text, **options):
                entered.set()
                leave.wait(10)
                return [1]

            with monkeypatch.context() as patch:
                patch.setattr(served.front.tokenizer, "encode_text", slow)
                _, writer = await served.raw(COMPLETIONS, LONG)
                await asyncio.to_thread(entered.wait, 10)
                assert served.front.generator.num_queued == 1
                writer.close()
                await until(lambda: not served.front.generator.num_queued)
                leave.set()
            await served.http.post(COMPLETIONS, json={"prompt": "x"})
            assert len(served.front.engine.submits()) == 1

    run(main())


def test_a_failure_before_the_first_token_is_an_http_error(run, serve):
    async def main():
        async with serve() as served:
            engine = served.front.engine
            engine.auto = False
            for stream in (False, True):
                body = {**LONG, "stream": stream}
                call = asyncio.create_task(served.http.post(COMPLETIONS, json=body))
                await engine.until(lambda: bool(engine.waiting))
                [request] = engine.waiting
                engine.waiting.clear()
                engine.fail("no luck", request)
                response = await call
                assert response.status_code == 500
                assert response.json()["error"]["message"] == "no luck"
                assert response.headers["x-should-retry"] == "false"

    run(main())


@pytest.mark.parametrize(
    ("stream", "state"), [(True, "queued"), (False, "queued"), (False, "running")]
)
def test_a_deadline_before_any_output_is_a_504_that_nobody_retries(run, serve, stream, state):
    async def main():
        async with serve() as served:
            engine = served.front.engine
            engine.auto = False
            engine.seats = 0 if state == "queued" else 2
            body = {**LONG, "stream": stream, "n": 2}
            call = asyncio.create_task(served.http.post(COMPLETIONS, json=body))
            await engine.until(lambda: len(engine.waiting) == 2)
            engine.step(2)
            engine.expire(*engine.running, *engine.waiting)
            engine.step()
            response = await call

            assert response.status_code == 504
            error = response.json()["error"]
            assert (error["type"], error["code"]) == ("timeout_error", "deadline_exceeded")
            assert response.headers["x-should-retry"] == "false"
            assert served.front.is_clean()
            metrics = await metrics_of(served)
            assert metrics["cadenza:request_success_total", "deadline"] == 1
            assert metrics["cadenza:time_to_first_token_seconds_count", ""] == (state == "running")

    run(main())


def test_the_openai_client_raises_when_the_engine_dies(run, serve):
    async def main():
        async with serve() as served:
            engine = served.front.engine
            engine.auto = False
            async with served.openai as client:
                creating = asyncio.create_task(
                    client.completions.create(model="tiny", prompt="x", stream=True)
                )
                await engine.until(lambda: bool(engine.waiting))
                engine.step(2)
                stream = await creating
                engine.die()
                with pytest.raises(openai.APIError, match="engine"):
                    async for _ in stream:
                        pass
                with pytest.raises(openai.InternalServerError):
                    await client.completions.create(model="tiny", prompt="x")
            assert (await served.http.get("/health")).status_code == 503
            assert (await served.http.get("/ready")).status_code == 503
            metrics = await metrics_of(served)
            assert metrics["cadenza:num_requests_running", ""] == 0

    run(main())


def test_the_pages_that_only_look(run, serve):
    async def main():
        async with serve(ready=False) as served:
            assert (await served.http.get("/health")).status_code == 200
            assert (await served.http.get("/ready")).status_code == 503
            served.front.engine.become_ready()
            await served.front.client.ready()
            assert (await served.http.get("/health")).content == b""
            assert (await served.http.get("/ready")).status_code == 200
            assert (await served.http.post("/ping")).status_code == 200
            assert "version" in (await served.http.get("/version")).json()
            models = (await served.http.get("/v1/models")).json()
            assert [model["id"] for model in models["data"]] == ["tiny", "alias"]
            assert models["data"][0]["max_model_len"] == 256
            assert (await served.http.get("/v1/models/alias")).json()["id"] == "alias"

    run(main())


def test_a_service_that_mends_itself_is_alive_and_one_that_has_given_up_is_not(run, serve):
    async def main():
        async with serve(recovers=True) as served:

            async def status(page: str) -> int:
                return (await served.http.get(page)).status_code

            served.front.engine.die()
            await served.front.client.loss()
            assert (await status("/health"), await status("/ready")) == (200, 503)
            await served.front.recover()
            assert (await status("/health"), await status("/ready")) == (200, 200)
            served.front.client.fail("too many deaths")
            assert (await status("/health"), await status("/ready")) == (503, 503)

    run(main())


def test_an_engine_whose_requests_all_wait_for_their_readers_may_be_silent(run, serve):
    """It says nothing for as long as nobody reads, and has to once somebody does."""

    async def main():
        async with serve() as served:
            engine = served.front.engine
            engine.auto = False
            async with await served.front.generator.submit(GenerationRequest(text="x")):
                client, told = served.front.client, asyncio.Event()
                client.watch_decisions(lambda _: told.set())
                await engine.until(lambda: bool(engine.waiting))
                engine.told_counters = {"at_rest": True}
                engine.step()
                await told.wait()
                assert not client.is_busy
                client.work.grant(1, 5)
                assert client.is_busy

    run(main())


def test_request_ids_are_echoed_only_when_well_formed(run, serve):
    async def main():
        async with serve() as served:
            for given, echoed in (("a.B-9_", True), ("x" * 129, False), ("a b", False)):
                for path, body in ((COMPLETIONS, {"prompt": "x"}), ("/nope", {})):
                    response = await served.http.post(
                        path, json=body, headers={"x-request-id": given}
                    )
                    assert response.headers.get("x-request-id") == (given if echoed else None)

    run(main())


def test_a_requests_id_is_in_its_own_log_alone(run, serve, monkeypatch):
    """On one connection, where the next request begins as the one before it ends."""

    async def main():
        async with serve() as served:
            bound = []
            generator = served.front.generator
            monkeypatch.setattr(
                generator, "check_model", lambda _: bound.append(get_contextvars()["request_id"])
            )
            plain = request_bytes(COMPLETIONS, {"prompt": "x"})
            named = plain.replace(b"host: x", b"host: x\r\nx-request-id: a")
            _, writer = await served.raw_bytes(named + plain)
            await until(lambda: len(bound) == 2)
            writer.close()
            assert bound == ["a", None]

    run(main())


def test_metrics_count_each_request_once_and_return_to_zero(run, serve):
    async def main():
        async with serve() as served:
            engine = served.front.engine
            await served.http.post(COMPLETIONS, json={"prompt": "x", "n": 3, "max_tokens": 4})
            await served.http.post(COMPLETIONS, json={"prompt": "x"})
            engine.auto = False
            _, writer = await served.raw(COMPLETIONS, {**LONG, "stream": True})
            await engine.until(lambda: bool(engine.waiting))
            await served.front.step()
            assert (await metrics_of(served))["cadenza:num_requests_running", ""] == 1
            writer.close()
            await engine.until(served.front.is_clean)
            metrics = await metrics_of(served)

            assert metrics["cadenza:num_requests_running", ""] == 0
            assert metrics["cadenza:num_requests_waiting", ""] == 0
            assert metrics["cadenza:kv_cache_usage_perc", ""] == 0
            assert metrics["cadenza:time_to_first_token_seconds_count", ""] == 3
            assert metrics["cadenza:e2e_request_latency_seconds_count", ""] == 2
            assert metrics["cadenza:request_success_total", "length"] == 1
            assert metrics["cadenza:request_success_total", "stop"] == 1
            assert metrics["cadenza:request_success_total", "abort"] == 1
            assert metrics["cadenza:generation_tokens_total", ""] == 3 * 4 + 13 + 1

    run(main())


def test_the_engines_size_is_known_before_its_first_step(run, serve):
    async def main():
        async with serve(ready=False) as served:
            assert (await metrics_of(served))["cadenza:num_host_blocks", ""] == 0
            served.front.engine.become_ready()
            await served.front.client.ready()
            metrics = await metrics_of(served)

            assert metrics["cadenza:num_host_blocks", ""] == 32
            assert metrics["cadenza:num_host_blocks_used", ""] == 0
            assert metrics["cadenza:host_kv_cache_usage_perc", ""] == 0

    run(main())


def test_metrics_tell_what_preemptions_cost(run, serve):
    async def main():
        async with serve() as served:
            served.front.engine.told_counters = {
                "parked": 2,
                "swapped": 3,
                "free_host_blocks": 24,
                "total_host_blocks": 32,
                "preemptions": 9,
                "swaps": 5,
                "recomputed_tokens": 70,
                "decisions_lost": 4,
                "policy_faults": 6,
            }
            await served.http.post(COMPLETIONS, json={"prompt": "x", "max_tokens": 1})
            before = await metrics_of(served)
            served.front.engine.die()
            await served.front.client.lost()
            after = await metrics_of(served)

            gauges = {
                "num_requests_parked": 2,
                "num_requests_swapped": 3,
                "num_host_blocks": 32,
                "num_host_blocks_used": 8,
                "host_kv_cache_usage_perc": 0.25,
            }
            totals = {
                ("num_preemptions_total", ""): 9,
                ("num_preemptions_by_kind_total", "swap"): 5,
                ("num_preemptions_by_kind_total", "recompute"): 4,
                ("recomputed_tokens_total", ""): 70,
                ("decisions_lost_total", ""): 4,
                ("policy_faults_total", ""): 6,
                ("timeline_records_dropped_total", ""): 0,
            }
            for name, value in gauges.items():
                assert before[f"cadenza:{name}", ""] == value
                assert after[f"cadenza:{name}", ""] == 0
            for (name, kind), value in totals.items():
                assert before[f"cadenza:{name}", kind] == value
                assert after[f"cadenza:{name}", kind] == value

    run(main())


def test_metrics_tell_which_policies_fail(run, serve):
    async def main():
        async with serve() as served:
            served.front.engine.told_policy_faults = (
                FaultCount("mine", "order_admissions", 3, True),
                FaultCount("mine", "select_victims", 1, True),
                FaultCount("other", "select_victims", 2, False),
            )
            for _ in range(2):  # what one frame told holds until another tells something else
                await served.http.post(COMPLETIONS, json={"prompt": "x", "max_tokens": 1})
                text = (await served.http.get("/metrics")).text
                served.front.engine.told_policy_faults = ()

                name = served.front.generator.model_name
                for policy, hook, faults in (
                    ("mine", "order_admissions", 3),
                    ("mine", "select_victims", 1),
                    ("other", "select_victims", 2),
                ):
                    labels = f'{{hook="{hook}",model_name="{name}",policy="{policy}"}}'
                    assert f"cadenza:policy_faults_by_hook_total{labels} {faults}.0" in text
                for policy, value in (("mine", 1), ("other", 0)):
                    labels = f'{{model_name="{name}",policy="{policy}"}}'
                    assert f"cadenza:policy_quarantined{labels} {value}.0" in text

    run(main())


def test_headers_without_end_are_cut_off(run, serve):
    async def main():
        async with serve() as served:
            reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
            writer.write(b"GET /health HTTP/1.1\r\nx: ")
            for _ in range(80):
                writer.write(b"x" * 1024)
            assert b" 400 " in await reader.readline()
            writer.close()
            for _ in range(200):  # many small requests on one connection are no big one
                response = await served.http.get("/health", headers={"x": "y" * 1000})
                assert response.status_code == 200
            big = {"prompt": "x", "user": "u" * 300_000, "max_tokens": 1}
            assert (await served.http.post(COMPLETIONS, json=big)).status_code == 200

    run(main())


def test_a_client_that_stops_reading_is_cut_off_and_others_go_on(run, serve):
    async def main():
        limits = ConnectionLimits(send_s=0.2)
        async with serve(connections=limits, max_model_len=100_000) as served:
            engine = served.front.engine
            engine.auto = False
            body = {**LONG, "max_tokens": 40_000, "stream": True, "logprobs": 20}
            client = await served.silent(request_bytes(COMPLETIONS, body))
            await engine.until(lambda: bool(engine.waiting))
            with capture_logs() as logs:
                await served.front.step(400)  # more than fits between the two
                await engine.until(lambda: bool(engine.cancels()))
            assert not [log for log in logs if log["log_level"] == "error"]
            engine.resume()
            assert (await served.http.post(COMPLETIONS, json={"prompt": "x"})).status_code == 200
            assert served.front.is_clean()
            client.close()

    run(main())


def test_an_unexpected_error_is_told_without_its_insides(run, serve, monkeypatch):
    async def main():
        async with serve() as served:

            async def broken(request):
                raise KeyError("/secret/path")

            monkeypatch.setattr(served.front.generator, "submit_all", broken)
            response = await served.http.post(COMPLETIONS, json={"prompt": "x"})
            assert response.status_code == 500
            assert "secret" not in response.text
            assert response.json()["error"]["type"] == "server_error"

    run(main())


def test_stopping_is_bounded_while_streams_are_open(run, serve):
    async def main():
        async with serve() as served:
            engine = served.front.engine
            engine.auto = False
            reader, writer = await served.raw(COMPLETIONS, {**LONG, "stream": True})
            await engine.until(lambda: bool(engine.waiting))
            engine.step()
            await reader.readline()
            assert not await served.front.generator.drain(0.05)
            refused = await served.http.post(COMPLETIONS, json={"prompt": "x"})
            assert refused.status_code == 503
            served.front.client.close()
            rest = await reader.readuntil(b"}}\n\n")
            error = json.loads(rest.rsplit(b"data: ", 1)[1])
            assert "shutting down" in error["error"]["message"]
            writer.close()

    run(main())
