"""Thousands of hostile requests: none is a failure of ours or hangs, and nothing stays of them."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from cadenza.service.http.openapi import document
from cadenza.service.limits import Limits

from .conftest import OpenServed, Served
from .hostile_requests import Hostile, hostile_requests, narrowed, send_all

# `make soak` sends more, of other seeds
COUNT = int(os.environ.get("HOSTILE_REQUESTS", "5000"))
SEED = int(os.environ.get("HOSTILE_SEED") or "1")
A_ROUND = 5000

pytestmark = pytest.mark.extra

TOLD = document("1", Limits(), with_admin=True)
REFERENCE = {"prompt": "Say something.", "max_tokens": 8, "temperature": 0}


@pytest.mark.timeout(900 * -(-COUNT // A_ROUND))
def test_hostile_requests_are_answered_and_leave_nothing(
    run: Any, serve: OpenServed, tell: Callable[[str], None]
):
    async def main() -> None:
        seen: Counter[str] = Counter()
        kinds: Counter[str] = Counter()
        async with serve() as served:
            for first in range(0, COUNT, A_ROUND):
                count = min(A_ROUND, COUNT - first)
                sent = [*hostile_requests(narrowed(TOLD, 40), count, SEED + first)]
                seen += await hold(served, sent)
                kinds += Counter(each.kind for each in sent)
        took_s = time.monotonic() - began_s
        sent_told = f"{seen.total()} requests of seed {SEED} in {took_s:.0f} s"
        tell(f"{sent_told}: {shown(kinds)}; {shown(seen)}")
        assert seen.total() - seen["never sent"] >= COUNT

    began_s = time.monotonic()
    run(main())


def test_the_same_seed_makes_the_same_requests():
    first, again, other = ([*hostile_requests(TOLD, 60, seed)] for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert {each.kind for each in first} == {"allowed", "forbidden", "planted", "method"}


async def hold(served: Served, sent: list[Hostile]) -> Counter[str]:
    """Send them; what the service says afterwards is what it said before."""
    before = await answer(served)
    statuses = await send_all(served.http, sent)
    response = await served.http.put("/v1/policies/profile", json={})  # for whatever was chosen
    assert response.status_code == 200, response.text
    assert await answer(served) == before
    assert served.front.is_clean()
    assert (await served.http.get("/load")).json() == {"server_load": 0}
    return statuses


def shown(counts: Counter[str]) -> str:
    return ", ".join(f"{counts[key]} {key}" for key in sorted(counts))


async def answer(served: Served) -> Any:
    return (await served.http.post("/v1/completions", json=REFERENCE)).json()["choices"]
