"""Engines that are killed or hang under streams of the real model."""

from __future__ import annotations

import asyncio
import json
import os
import re
import select
import signal
from contextlib import suppress

import httpx
import pytest

from tests.e2e.conftest import Serve
from tests.e2e.servers import Served

# In fp32 and by one thread, beside whatever else the machine does
FLAGS = ("--max-num-seqs", "8", "--num-blocks", "256", "--dtype", "float32", "--threads", "1")

REQUESTS = [
    {"temperature": 0.0},
    {"temperature": 1.0, "seed": 7, "logprobs": 1},
    {"temperature": 0.9, "seed": 8, "n": 2, "presence_penalty": 0.5},
    {"temperature": 0.0, "stop": ["never in the text"]},
]


async def stream(
    http: httpx.AsyncClient, fields: dict[str, object], began: asyncio.Semaphore | None = None
) -> dict[int, list[object]]:
    """By choice: the whole text, its log-probabilities, and how it ended."""
    told: dict[int, list[object]] = {}
    body = {"prompt": "The old violin", "max_tokens": 96, "ignore_eos": True, "stream": True}
    async with http.stream("POST", "/v1/completions", json=body | fields) as answer:
        async for line in answer.aiter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line.removeprefix("data: "))
            assert "error" not in event, event
            for choice in event["choices"]:
                so_far = told.setdefault(choice["index"], ["", [], None])
                so_far[0] += choice["text"]
                so_far[1] += (choice["logprobs"] or {}).get("token_logprobs", [])
                so_far[2] = so_far[2] or choice["finish_reason"]
            if began is not None and told:
                began.release()
                began = None
    return told


async def disturbed(served: Served, *signals: signal.Signals) -> None:
    """The same streams once more, and an engine gets a signal each time all have begun."""
    async with httpx.AsyncClient(base_url=served.http, timeout=110) as http:
        undisturbed = await asyncio.gather(*(stream(http, each) for each in REQUESTS))
        for number in signals:
            began = asyncio.Semaphore(0)
            streams = [asyncio.ensure_future(stream(http, each, began)) for each in REQUESTS]
            for _ in streams:
                await began.acquire()
            os.kill(served.engine_pid, number)
            assert (await http.get("/health")).status_code == 200
            assert await asyncio.gather(*streams) == undisturbed
        metrics = (await http.get("/metrics")).text
    [restarts] = re.findall(r"^cadenza:engine_restarts_total{.*} (.*)$", metrics, re.MULTILINE)
    assert float(restarts) == len(signals)


def test_streams_go_on_with_the_tokens_that_they_would_have_had(serve: Serve):
    served = serve(*FLAGS)
    asyncio.run(disturbed(served, signal.SIGKILL))

    engine = served.engine_pid
    served.process.kill()
    served.process.wait()
    _ends(engine)


@pytest.mark.extra
def test_an_engine_that_hangs_is_replaced(serve: Serve):
    served = serve(*FLAGS)
    asyncio.run(disturbed(served, signal.SIGSTOP, signal.SIGSEGV))
    assert served.stop() == 0


def _ends(pid: int) -> None:
    """It is not our child; pytest's limit ends the wait."""
    with suppress(ProcessLookupError):
        pidfd = os.pidfd_open(pid)
        select.select([pidfd], [], [])
        os.close(pidfd)
