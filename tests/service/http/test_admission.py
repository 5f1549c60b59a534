"""Quotas and shedding as clients of HTTP meet them, in front of a fake engine."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest

from cadenza.service.limits import Limits
from tests.service.waiting import until

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
TENANT = "x-gateway-inference-fairness-id"
ONE_AT_A_TIME = {"tenant-quota": {"max_queued": 1}}
LEAST_URGENT = {"shed_load": "lowest-priority"}


def completion(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "prompt": "hello", "max_tokens": 4, **fields}


def is_clean(served: Any) -> bool:
    return bool(served.front.is_clean() and served.front.generator.is_idle)


async def until_queued(served: Any, choices: int) -> None:
    await until(lambda: served.front.generator.num_queued == choices)


def quota(**options: Any) -> dict[str, Any]:
    return {"chosen": {"gate_arrivals": "tenant-quota"}, "options": {"tenant-quota": options}}


@pytest.mark.parametrize("stream", [False, True])
def test_a_tenant_over_its_rate_is_told_429_and_when_to_come_back(run, serve, stream):
    async def main():
        async with serve(**quota(tokens_per_s=0.5, burst_s=200)) as served:
            tokens = {"prompt": [1] * 50, "max_tokens": 40, "stream": stream}
            headers = {TENANT: "a"}
            first = await served.http.post(COMPLETIONS, json=completion(**tokens), headers=headers)
            second = await served.http.post(COMPLETIONS, json=completion(**tokens), headers=headers)
            others = await served.http.post(
                COMPLETIONS, json=completion(**tokens), headers={TENANT: "b"}
            )

            assert (first.status_code, others.status_code) == (200, 200)
            assert second.status_code == 429
            assert second.json() == {
                "error": {
                    "message": "Your limit of 0.5 tokens a second is reached. Try again later.",
                    "type": "rate_limit_error",
                    "param": None,
                    "code": "rate_limit_exceeded",
                }
            }
            # 90 of 100 tokens are spent, and 90 are wanted: 80 more, less what came since
            assert 100 < int(second.headers["retry-after"]) <= 160
            assert 100_000 < int(second.headers["retry-after-ms"]) <= 160_000
            assert is_clean(served)
            metrics = (await served.http.get("/metrics")).text
            assert _rejections(metrics, "tenant-quota") == 1
            assert _rejections(metrics, "queue-limit") == 0

    run(main())


def _rejections(metrics: str, reason: str) -> float:
    start = f'cadenza:admission_rejections_total{{model_name="tiny",reason="{reason}"}} '
    [line] = [line for line in metrics.splitlines() if line.startswith(start)]
    return float(line.removeprefix(start))


def test_the_openai_client_knows_a_rate_limit(run, serve):
    async def main():
        async with serve(**quota(max_queued=1)) as served:
            async with served.openai as client:
                with pytest.raises(openai.RateLimitError) as refused:
                    await client.completions.create(model="tiny", prompt="hi", n=2)
            assert refused.value.code == "rate_limit_exceeded"

    run(main())


def test_a_limit_of_the_services_is_503(run, serve):
    async def main():
        options = {"queue-limit": {"max_tokens": 10}}
        async with serve(options=options) as served:
            served.front.engine.auto = False
            waiting = asyncio.create_task(
                served.http.post(COMPLETIONS, json=completion(prompt=[1] * 9))
            )
            await served.front.engine.until(lambda: bool(served.front.engine.waiting))
            refused = await served.http.post(COMPLETIONS, json=completion(prompt=[1] * 2))
            assert refused.status_code == 503
            assert refused.json()["error"]["code"] == "queue_full"
            assert refused.headers["retry-after"] == "1"

            served.front.engine.resume()
            assert (await waiting).status_code == 200
            assert is_clean(served)

    run(main())


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize("stream", [False, True])
def test_who_is_shed_gets_503_and_the_newcomer_its_answer(run, serve, path, stream):
    async def main():
        async with serve(limits=Limits(max_queued=2), chosen=LEAST_URGENT) as served:
            engine = served.front.engine
            engine.auto = False

            def post(**fields: Any) -> asyncio.Task[Any]:
                body = completion(stream=stream, **fields)
                if path == CHAT:
                    body["messages"] = [{"role": "user", "content": body.pop("prompt")}]
                return asyncio.create_task(served.http.post(path, json=body))

            patient, urgent = post(priority=9), post(priority=0)
            await engine.until(lambda: len(engine.waiting) == 2)
            newcomer = post(priority=5)

            shed = await patient
            assert shed.status_code == 503
            assert shed.json()["error"]["code"] == "queue_full"
            assert shed.json()["error"]["message"].startswith("The queue is full (2 choices wait)")
            assert shed.headers["retry-after-ms"] == "1000"
            await engine.until(lambda: len(engine.waiting) == 2 and len(engine.cancels()) == 1)
            engine.resume()
            for task in (urgent, newcomer):
                assert (await task).status_code == 200
            assert is_clean(served)
            metrics = (await served.http.get("/metrics")).text
            assert _rejections(metrics, "shed") == 1
            assert _rejections(metrics, "max_num_queued_reqs") == 0
            assert 'request_success_total{finished_reason="shed",model_name="tiny"} 1.0' in metrics

    run(main())


def test_choices_and_prompts_of_a_call_are_shed_together(run, serve):
    async def main():
        async with serve(limits=Limits(max_queued=6), chosen=LEAST_URGENT) as served:
            engine = served.front.engine
            engine.auto = False
            both = completion(prompt=["one", "two"], n=2, priority=7)
            call = asyncio.create_task(served.http.post(COMPLETIONS, json=both))
            other = asyncio.create_task(served.http.post(COMPLETIONS, json=completion(n=2)))
            await engine.until(lambda: len(engine.waiting) == 6)

            newcomer = asyncio.create_task(served.http.post(COMPLETIONS, json=completion(n=3)))
            assert (await call).status_code == 503
            await engine.until(lambda: len(engine.cancels()) == 4)
            assert served.front.generator.num_queued == 5
            engine.resume()
            assert len((await newcomer).json()["choices"]) == 3
            assert len((await other).json()["choices"]) == 2
            assert is_clean(served)

    run(main())


def test_a_call_of_which_one_choice_has_a_seat_is_not_shed(run, serve):
    async def main():
        async with serve(limits=Limits(max_queued=2), chosen=LEAST_URGENT) as served:
            engine = served.front.engine
            engine.auto, engine.seats = False, 1
            begun = asyncio.create_task(
                served.http.post(COMPLETIONS, json=completion(n=2, priority=9))
            )
            await engine.until(lambda: len(engine.waiting) == 2)
            engine.step()
            await until_queued(served, 1)
            waiting = asyncio.create_task(
                served.http.post(COMPLETIONS, json=completion(priority=5))
            )
            await engine.until(lambda: len(engine.waiting) == 2)

            newcomer = asyncio.create_task(
                served.http.post(COMPLETIONS, json=completion(priority=0))
            )
            assert (await waiting).status_code == 503
            engine.resume()
            assert len((await begun).json()["choices"]) == 2
            assert (await newcomer).status_code == 200
            assert is_clean(served)

    run(main())


def test_prompts_of_a_call_pass_a_gate_together_or_not_at_all(run, serve):
    async def main():
        async with serve(**quota(max_queued=2)) as served:
            three = completion(prompt=["one", "two", "three"])
            refused = await served.http.post(COMPLETIONS, json=three)
            assert refused.status_code == 429
            assert served.front.engine.submits() == []
            two = await served.http.post(COMPLETIONS, json=completion(prompt=["one", "two"]))
            assert len(two.json()["choices"]) == 2
            assert is_clean(served)

    run(main())


def test_a_call_is_shed_while_its_prompt_is_encoded(run, serve, monkeypatch):
    async def main():
        async with serve(limits=Limits(max_queued=1), chosen=LEAST_URGENT) as served:
            generator, never = served.front.generator, asyncio.Event()
            encode = generator._encoder.prompt

            async def slowly(request: Any, ready: Any) -> Any:
                if request.prompt.text == "slow":
                    await never.wait()
                return await encode(request, ready)

            monkeypatch.setattr(generator._encoder, "prompt", slowly)
            slow = asyncio.create_task(
                served.http.post(COMPLETIONS, json=completion(prompt="slow", priority=3))
            )
            await until_queued(served, 1)

            assert (await served.http.post(COMPLETIONS, json=completion())).status_code == 200
            shed = await slow
            assert (shed.status_code, shed.json()["error"]["code"]) == (503, "queue_full")
            assert len(served.front.engine.submits()) == 1
            assert is_clean(served)

    run(main())


def test_a_field_that_is_wrong_is_told_before_a_quota(run, serve):
    async def main():
        async with serve(**quota(max_queued=1)) as served:
            response = await served.http.post(COMPLETIONS, json=completion(n=2, temperature=-1))
            assert response.status_code == 400

    run(main())
