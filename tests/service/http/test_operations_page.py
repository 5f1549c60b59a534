"""docs/operations.md, row by row: defaults are those in force, and refusals are as it says."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from cadenza.cli.options import ServeOptions
from cadenza.service import listening, supervisor, watchdog
from cadenza.service.errors import STATUSES
from cadenza.service.http import body, protocol
from cadenza.service.http.connection import ConnectionLimits
from cadenza.service.limits import Limits, ResumptionLimits
from cadenza.service.rpc import connections, generate, live, servicer, session
from cadenza.service.wishes import TENANT_HEADER

PAGE = (Path(__file__).parents[3] / "docs/operations.md").read_text()
LIMITS, CONNECTION = Limits(), ConnectionLimits()


def rows(heading: str) -> dict[str, list[str]]:
    """By limit, the other cells of the table under a heading."""
    section = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")][1:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {name: rest for name, *rest in cells}


# By limit: its field, and a request that asks for one more
REQUESTS: dict[str, tuple[str, Callable[[int], dict[str, Any]]]] = {
    "choices of a request (`n`)": ("max_choices", lambda n: {"n": n}),
    "messages of a chat": (
        "max_messages",
        lambda n: {"messages": [{"role": "user", "content": "x"}] * n},
    ),
    "stop strings": ("max_stops", lambda n: {"stop": ["x"] * n}),
    "characters of a stop string": ("max_stop_chars", lambda n: {"stop": "x" * n}),
    "stop token ids": ("max_stop_token_ids", lambda n: {"stop_token_ids": [*range(n)]}),
    "log-probabilities beside a token": ("max_logprobs", lambda n: {"logprobs": n}),
    "tokens in `logit_bias`": (
        "max_logit_bias",
        lambda n: {"logit_bias": {str(token): 1 for token in range(n)}},
    ),
    "bad words": ("max_bad_words", lambda n: {"bad_words": ["x"] * n}),
    "characters of a bad word": ("max_bad_word_chars", lambda n: {"bad_words": ["x" * n]}),
    "characters of a cache salt": ("max_salt_chars", lambda n: {"cache_salt": "x" * n}),
}


async def refusal(served, fields: dict[str, Any], headers: dict[str, str] | None = None) -> str:
    """As the page tells it."""
    path = "/v1/chat/completions" if "messages" in fields else "/v1/completions"
    prompt = {} if "messages" in fields else {"prompt": "x"}
    answer = await served.http.post(path, json=prompt | fields, headers=headers)
    return f"{answer.status_code} `{answer.json()['error']['code']}`"


def test_every_limit_on_requests_has_a_row():
    told = {field for field, _ in REQUESTS.values()}
    elsewhere = {"max_queued", "max_tenant_chars", "resumption"}
    assert told | elsewhere == {field.name for field in fields(Limits)}
    others = {
        "choices without a first seat",
        "prompt and output, in tokens",
        "characters of a tenant's name",
    }
    assert rows("Requests").keys() == REQUESTS.keys() | others


@pytest.mark.parametrize("name", REQUESTS)
def test_one_more_than_a_limit_is_refused_as_the_page_says(run, serve, name):
    field, asking = REQUESTS[name]
    default, _, over_http, over_grpc = rows("Requests")[name]
    assert int(default) == getattr(LIMITS, field)

    async def main():
        async with serve() as served:
            assert await refusal(served, asking(int(default) + 1)) == over_http
            assert over_grpc == _grpc(over_http)

    run(main())


def test_the_limits_of_queue_context_and_tenants_are_as_the_page_says(run, serve):
    page = rows("Requests")

    async def main():
        async with serve(max_model_len=64) as served:
            tenant = page["characters of a tenant's name"]
            headers = {TENANT_HEADER: "x" * (int(tenant[0]) + 1)}
            assert await refusal(served, {}, headers) == tenant[2]
            context = page["prompt and output, in tokens"]
            assert await refusal(served, {"max_tokens": 64}) == context[2]

            served.front.engine.auto = False
            queue = page["choices without a first seat"]
            most = LIMITS.max_choices
            requests = [
                await served.raw("/v1/completions", {"prompt": "x", "n": most})
                for _ in range(int(queue[0]) // most)
            ]
            waiting = served.front.engine.waiting
            await served.front.engine.until(lambda: len(waiting) == int(queue[0]))
            assert await refusal(served, {}) == queue[2]
            for each in (tenant, context, queue):
                assert each[3] == _grpc(each[2])
            for _, writer in requests:
                writer.close()

    run(main())


def _grpc(over_http: str) -> str:
    """The status that goes with it."""
    status, code = over_http.split()
    [found] = {
        f"`{each.grpc}`"
        for each in STATUSES.values()
        if (each.http, each.code) == (int(status), code.strip("`"))
    }
    return found


def test_the_defaults_of_connections_are_as_the_page_says():
    http = [default for default, _ in rows("HTTP connections").values()]
    assert http == [
        str(CONNECTION.max_connections),
        f"{protocol.MAX_HEAD_BYTES >> 10} KiB",
        f"{body.MAX_BODY_BYTES >> 20} MiB",
        *(f"{value:g}" for value in (CONNECTION.head_s, CONNECTION.body_s, CONNECTION.send_s)),
        str(CONNECTION.idle_s),
        f"{protocol.UNSENT_BYTES >> 10} KiB",
        f"{listening.SEND_BUFFER_BYTES >> 10} KiB",
    ]
    grpc = [default for default, _ in rows("gRPC connections").values()]
    assert grpc == [
        f"{connections.MAX_MESSAGE_BYTES >> 20} MiB",
        str(connections.MAX_STREAMS),
        str(connections.PING_EVERY_MS),
        str(connections.PING_ANSWERED_MS),
        str(live.MAX_LIVE),
        f"{session.TOKENS_LIMIT_BYTES >> 10} KiB",
        f"{generate.LIMIT_BYTES >> 10} KiB",
        f"{servicer.STALL_S:g}",
    ]


def test_the_defaults_of_resumption_and_of_the_engine_are_as_the_page_says():
    kept = LIMITS.resumption
    resumption = [cells[0] for cells in rows("Streams that can be resumed").values()]
    assert resumption == [f"{kept.grace_s:g}", str(kept.max_streams), str(kept.max_bytes >> 10)]
    engine = [cells[0] for cells in rows("The engine").values()]
    assert engine == [
        *(f"{value:g}" for value in (watchdog.HEARTBEAT_S, watchdog.HOOK_S, watchdog.LOADING_S)),
        str(supervisor.MAX_RESTARTS),
    ]
    assert f"restarts within {supervisor.WINDOW_S:g} s of serving" in rows("The engine")


def test_options_that_the_page_names_exist():
    named = set(re.findall(r"`--([a-z-]+)`", PAGE))
    assert named
    assert {name.replace("-", "_") for name in named} <= ServeOptions.model_fields.keys()


def test_one_connection_more_is_told_and_closed(run, serve):
    most, told = rows("HTTP connections")["connections"]
    assert int(most) == CONNECTION.max_connections
    assert told == "503, then closed"

    async def main():
        async with serve(connections=ConnectionLimits(max_connections=1)) as served:
            first = await asyncio.open_connection("127.0.0.1", served.port)
            reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
            assert (await reader.read()).startswith(b"HTTP/1.1 503 ")
            writer.close()
            first[1].close()

    run(main())


def test_one_byte_more_of_a_body_or_a_head_is_refused_as_the_page_says(run, serve):
    page = rows("HTTP connections")

    async def main():
        async with serve() as served:
            most = body.MAX_BODY_BYTES
            answer = await served.http.post("/v1/completions", content=b" " * (most + 1))
            assert str(answer.status_code) == page["body"][1]
            reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
            writer.write(b"GET /health HTTP/1.1\r\nx: " + b"x" * protocol.MAX_HEAD_BYTES)
            told = await reader.read()
            status, _, closed = page["request line and headers"][1].partition(", then ")
            assert told.startswith(f"HTTP/1.1 {status} ".encode())
            assert closed == "closed"
            writer.close()

    run(main())


def test_one_stream_more_that_can_be_resumed_is_refused_as_the_page_says(run, serve):
    told = rows("Streams that can be resumed")["streams that run, or have ended and are kept"]

    async def main():
        limits = Limits(resumption=ResumptionLimits(max_streams=1))
        async with serve(limits=limits) as served:
            served.front.engine.auto = False
            fields = {"prompt": "x", "stream": True}
            _, writer = await served.raw("/v1/completions", fields | {"stream_id": "a" * 32})
            await served.front.engine.until(lambda: served.front.engine.waiting)
            assert await refusal(served, fields | {"stream_id": "b" * 32}) in told[-1]
            writer.close()

    run(main())
