"""/v1/requests, /load and the caches, over real sockets."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cadenza.wire.messages import Decision, ResetPrefixCache, Step

from .conftest import OpenServed, Served

AUTHORIZED = {"authorization": "Bearer s3cret"}
TENANT = {"x-gateway-inference-fairness-id": "acme"}
COMPLETIONS = "/v1/completions"


async def look(served: Served, name: str, headers: dict[str, str] | None = None) -> Any:
    response = await served.http.get(f"/v1/requests/{name}", headers=headers)
    assert response.status_code == 200, response.text
    return response.json()


def decide(served: Served, kind: str, request: int, **facts: Any) -> None:
    served.front.engine.decisions.append(Decision(kind, request, 4, 0.0, facts))


@pytest.mark.parametrize("path", [COMPLETIONS, "/v1/chat/completions"])
@pytest.mark.parametrize("stream", [True, False])
def test_the_id_of_an_answer_names_its_request(run, serve: OpenServed, path: str, stream: bool):
    async def main() -> None:
        async with serve() as served:
            messages = [{"role": "user", "content": "x"}]
            body = {"prompt": "x", "messages": messages, "max_tokens": 2, "n": 2}
            if stream:
                name = (await served.events(path, body))[0]["id"]
            else:
                name = (await served.http.post(path, json=body)).json()["id"]
            status = await look(served, name)

            assert status["id"] == name.partition("-")[2]
            assert status["object"] == "request"
            assert status["model"] == "tiny"
            assert status["state"] == "finished"
            assert status["cached_tokens"] == 3
            assert [choice["reason"] for choice in status["choices"]] == ["length"] * 2
            assert await look(served, status["id"]) == status

            timeline = await look(served, f"{name}/timeline")
            kinds = [(record["choice"], record["kind"]) for record in timeline["records"]]
            assert kinds == [(i, k) for k in ("arrived", "admitted", "finished") for i in (0, 1)]
            assert timeline["dropped"] == 0
            assert timeline["records"][-1]["facts"] == {"reason": "length"}
            times_s = [record["time_s"] for record in timeline["records"]]
            assert times_s == sorted(times_s)
            assert 0 <= times_s[0] < 60

    run(main())


def test_the_state_follows_the_decisions(run, serve: OpenServed):
    async def main() -> None:
        async with serve() as served:
            engine = served.front.engine
            engine.auto = False
            engine.seats = 0
            body = {"prompt": "x", "max_tokens": 3, "n": 2}
            call = asyncio.create_task(served.http.post(COMPLETIONS, json=body))
            await engine.until(lambda: len(engine.waiting) == 2)
            one, two = engine.waiting
            [name] = served.front.generator._timelines._live

            async def states() -> tuple[str, ...]:
                told = asyncio.Event()
                served.front.client.watch_decisions(lambda _: told.set())
                engine.send(Step(step_id=4, decisions=engine._drain_decisions()))
                await told.wait()
                status = await look(served, name)
                return (status["state"], *(choice["state"] for choice in status["choices"]))

            decide(served, "starving", one, overtakes=70, wait_s=1.0)
            assert await states() == ("waiting", "waiting", "waiting")
            assert (await look(served, name))["cached_tokens"] is None
            decide(served, "admitted", one, cached_tokens=0)
            assert await states() == ("running", "running", "waiting")
            decide(served, "admitted", two, cached_tokens=9)
            decide(served, "parked", one)
            assert await states() == ("running", "parked", "running")
            decide(served, "unparked", one)
            decide(served, "preempted", two, swapped=True, cause="memory")
            assert await states() == ("running", "running", "swapped")
            decide(served, "host_copy_dropped", two)
            decide(served, "preempted", one, swapped=False, cause="memory")
            assert await states() == ("preempted", "preempted", "preempted")
            decide(served, "resumed", one)
            decide(served, "finished", two, reason="failed", generated_tokens=2)
            assert await states() == ("running", "running", "finished")
            status = await look(served, name)
            assert status["cached_tokens"] == 0
            assert status["choices"][1] == {
                "index": 1,
                "state": "finished",
                "reason": "failed",
                "generated_tokens": 2,
                "preemptions": 1,
            }
            engine.seats = 9
            engine.resume()
            await call

    run(main())


def test_every_prompt_of_a_call_is_a_request(run, serve: OpenServed):
    async def main() -> None:
        async with serve() as served:
            body = {"prompt": ["a", "bcd"], "max_tokens": 1}
            name = (await served.http.post(COMPLETIONS, json=body)).json()["id"]
            lengths = [(await look(served, f"{name}-{i}"))["prompt_tokens"] for i in (0, 1)]
            assert lengths == [1, 3]
            assert (await served.http.get(f"/v1/requests/{name}")).status_code == 404

    run(main())


@pytest.mark.parametrize("path", ["nobody", "nobody/timeline", "cmpl-", "%00", "x" * 3000])
def test_an_unknown_id_is_not_found(run, serve: OpenServed, path: str):
    async def main() -> None:
        async with serve() as served:
            response = await served.http.get(f"/v1/requests/{path}")
            assert response.status_code == 404
            assert response.json()["error"]["code"] == "request_not_found"

    run(main())


def test_a_tenants_request_is_shown_to_it_and_to_the_administrator(run, serve: OpenServed):
    async def main() -> None:
        async with serve(admin_key="s3cret") as served:
            body = {"prompt": "x", "max_tokens": 1}
            answer = await served.http.post(COMPLETIONS, json=body, headers=TENANT)
            for path in (name := answer.json()["id"], f"{name}/timeline"):
                refusals = [
                    await served.http.get(f"/v1/requests/{path}", headers=headers)
                    for headers in (
                        {},
                        {"x-gateway-inference-fairness-id": "other"},
                        {"authorization": "Bearer wrong"},
                        {**AUTHORIZED, "origin": "http://localhost"},
                    )
                ]
                unknown = await served.http.get("/v1/requests/nobody")
                assert {r.status_code for r in refusals} == {404}
                assert {r.text for r in refusals} == {unknown.text}
                await look(served, path, TENANT)
                await look(served, path, AUTHORIZED)

    run(main())


def test_load_counts_requests_until_their_answers_are_delivered(run, serve: OpenServed):
    async def main() -> None:
        async with serve() as served:
            engine = served.front.engine
            engine.auto = False

            async def load() -> int:
                return (await served.http.get("/load")).json()["server_load"]

            assert await load() == 0
            body = {"prompt": ["a", "b"], "max_tokens": 2, "n": 2}
            call = asyncio.create_task(served.http.post(COMPLETIONS, json=body))
            await engine.until(lambda: len(engine.waiting) == 4)
            assert await load() == 2
            engine.resume()
            await call
            assert await load() == 0

    run(main())


def test_load_counts_requests_that_wait_for_the_engine(run, serve: OpenServed):
    async def main() -> None:
        async with serve(ready=False) as served:
            call = asyncio.create_task(served.http.post(COMPLETIONS, json={"prompt": "x"}))
            async with asyncio.timeout(10):
                while (await served.http.get("/load")).json() != {"server_load": 1}:
                    pass
            served.front.engine.become_ready()
            assert (await call).status_code == 200

    run(main())


@pytest.mark.parametrize("path", ["/reset_prefix_cache", "/flush_cache"])
def test_the_administrator_resets_the_cache(run, serve: OpenServed, path: str):
    async def main() -> None:
        async with serve(admin_key="s3cret") as served:
            engine = served.front.engine
            for headers, status in (
                ({}, 401),
                ({"authorization": "Bearer x"}, 401),
                ({**AUTHORIZED, "origin": "http://localhost"}, 403),
            ):
                refused = await served.http.post(path, headers=headers)
                assert refused.status_code == status
            assert (await served.http.get(path, headers=AUTHORIZED)).status_code == 405
            assert ResetPrefixCache() not in engine.received
            response = await served.http.post(path, headers=AUTHORIZED)
            assert response.json() == {"status": "ok"}
            assert engine.received.count(ResetPrefixCache()) == 1

            engine.die()
            await served.front.client.lost()
            assert (await served.http.post(path, headers=AUTHORIZED)).status_code == 503

    run(main())
