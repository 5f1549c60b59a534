"""Headers by which a gateway says whom a request counts for, and how soon tokens are wanted."""

from __future__ import annotations

import pytest

from cadenza.service.errors import InvalidRequest
from cadenza.service.limits import Limits
from cadenza.service.request import GenerationRequest

PATH = "/v1/completions"
BODY = {"model": "tiny", "prompt": ["a", "b"], "max_tokens": 2}
TTFT, TPOT = "x-slo-ttft-ms", "x-slo-tpot-ms"
TIMEOUT = "x-request-timeout-ms"
TENANT = "x-gateway-inference-fairness-id"
TIMES = (TTFT, TPOT, TIMEOUT)

BAD = [
    *((name, value) for name in TIMES for value in ("0", "-5", "", "soon", "nan", "inf")),
    *((name, value) for name in TIMES for value in ("1e3", "1_0", "86400001", "9" * 400)),
    *((TENANT, value) for value in ("", "a b", "x" * 129, "\u00e9")),
]


def test_headers_reach_the_engine_with_every_prompt(run, serve):
    async def scenario():
        async with serve() as served:
            headers = {TTFT: "250", TPOT: "12.5", TENANT: "team-7"}
            response = await served.http.post(PATH, json=BODY, headers=headers)

            assert response.status_code == 200
            submits = served.front.engine.submits()
            assert len(submits) == 2
            for submit in submits:
                assert (submit.ttft_target_s, submit.tpot_target_s) == (0.25, 0.0125)
                assert submit.tenant == "team-7"

    run(scenario())


def test_without_headers_there_are_no_targets_and_no_tenant(run, serve):
    async def scenario():
        async with serve() as served:
            await served.http.post(PATH, json=BODY)
            [submit, _] = served.front.engine.submits()

            assert (submit.ttft_target_s, submit.tpot_target_s, submit.tenant) == (None, None, "")

    run(scenario())


@pytest.mark.parametrize("stream", [False, True])
def test_a_wrong_header_is_refused_by_its_name(run, serve, stream: bool):
    async def scenario():
        async with serve() as served:
            for name, value in BAD:
                headers = [(name.encode(), value.encode("latin-1"))]
                body = {**BODY, "stream": stream}
                response = await served.http.post(PATH, json=body, headers=headers)

                assert response.status_code == 400, (name, value)
                error = response.json()["error"]
                assert error["param"] == name
                assert name in error["message"]
            assert served.front.engine.submits() == []
            assert served.front.is_clean()

    run(scenario())


@pytest.mark.parametrize("name", [*TIMES, TENANT])
def test_a_header_that_comes_twice_is_refused(run, serve, name: str):
    async def scenario():
        async with serve() as served:
            headers = [(name, "5"), (name, "5")]
            response = await served.http.post(PATH, json=BODY, headers=headers)

            assert response.status_code == 400
            assert response.json()["error"]["param"] == name

    run(scenario())


def test_what_a_header_may_hold_every_limit_allows():
    assert Limits().max_tenant_chars == 128


def test_a_body_cannot_say_what_only_a_gateway_may(run, serve):
    async def scenario():
        async with serve() as served:
            body = {**BODY, "tenant": "somebody else", "ttft_target_s": 1}
            await served.http.post(PATH, json=body)

            assert {submit.tenant for submit in served.front.engine.submits()} == {""}

    run(scenario())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("ttft_target_s", value) for value in (0, -1.0, float("nan"), 1e9, True, "1")),
        ("tpot_target_s", 0.0),
        *(("tenant", value) for value in ("", "x" * 129, 5, "\ud800")),
    ],
)
def test_wishes_are_checked_wherever_they_come_from(run, open_front, field: str, value: object):
    async def scenario():
        async with open_front() as front:
            with pytest.raises(InvalidRequest) as caught:
                await front.generator.submit(GenerationRequest(text="x", **{field: value}))
            assert caught.value.field == field

    run(scenario())
