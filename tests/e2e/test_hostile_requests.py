"""Hostile requests to a real server: its engine goes on as if there had been none.

There are thousands of them in `tests/service/http`, before an engine without a model.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import Serve
from tests.e2e.test_serving import is_idle, until
from tests.service.http.hostile_requests import Hostile, hostile_requests, narrowed, send_all

pytestmark = [pytest.mark.extra, pytest.mark.timeout(600)]

COUNT, SEED = 300, 5
REFERENCE = {"prompt": "The three largest cities of Italy are", "max_tokens": 16, "temperature": 0}


def test_the_engine_is_unharmed_by_hostile_requests(serve: Serve):
    flags = ("--max-model-len", "256", "--max-num-seqs", "16", "--num-blocks", "256")
    served = serve(*flags, "--dtype", "float32", "--threads", "1")

    async def main() -> None:
        async with httpx.AsyncClient(base_url=served.http, timeout=120) as http:
            document = (await http.get("/openapi.json")).json()
            # all of them now: while they are made no connection is read
            sent = [*map(short, hostile_requests(narrowed(document, 40), COUNT, SEED))]
            before = await answer(http)
            statuses = await send_all(http, sent)
            assert statuses["200"] > COUNT // 20
            response = await http.put("/v1/policies/profile", json={})
            assert response.status_code == 200, response.text
            assert await answer(http) == before
            assert (await http.get("/health")).status_code == 200

    asyncio.run(main())
    until(served, is_idle)
    assert served.stop() == 0


async def answer(http: httpx.AsyncClient) -> Any:
    response = await http.post("/v1/completions", json=REFERENCE)
    assert response.status_code == 200, response.text
    return response.json()["choices"]


def short(request: Hostile) -> Hostile:
    """The request with few tokens to generate where it would have many."""
    try:
        body = json.loads(request.body)
    except (ValueError, RecursionError):
        return request
    if not isinstance(body, dict) or ("messages" not in body and "prompt" not in body):
        return request
    few = {name: 2 for name in ("max_tokens", "max_completion_tokens") if is_many(body.get(name))}
    text = json.dumps({**body, **few})
    return replace(request, body=text.encode())


def is_many(tokens: Any) -> bool:
    return tokens is None or (isinstance(tokens, int) and 2 < tokens < 256)
