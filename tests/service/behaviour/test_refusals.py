"""What cannot be served is refused alike over every transport: the code, the field, the words."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

import pytest

from cadenza.service.limits import Limits
from tests.grpc_input import Unsayable
from tests.transports import Failure

from . import bad_inputs
from .conftest import Served

CHAT = {"messages": [{"role": "user", "content": "hi"}]}
COMPLETION = {"prompt": "x", "max_tokens": 16}  # the default of completions over HTTP alone
Case = tuple[dict[str, Any], str]


def each_of(base: dict[str, Any], *tables: dict[str, list[Any]]) -> list[Case]:
    return [
        ({**base, field: value}, field)
        for table in tables
        for field, values in table.items()
        for value in values
    ]


def beside(base: dict[str, Any], cases: Iterable[Case]) -> list[Case]:
    return [({**base, **given}, field) for given, field in cases]


CHATS = [
    *each_of(CHAT, bad_inputs.SAMPLING, bad_inputs.OF_CHATS),
    *beside(CHAT, [*bad_inputs.TOGETHER, *bad_inputs.TOGETHER_IN_CHATS]),
]
COMPLETIONS = [
    *each_of(COMPLETION, bad_inputs.SAMPLING, bad_inputs.OF_COMPLETIONS),
    *beside(COMPLETION, bad_inputs.TOGETHER),
]


async def refusals(served: Served, fields: dict[str, Any]) -> dict[str, Failure | None]:
    """What each transport that has room for the fields is told."""
    told: dict[str, Failure | None] = {}
    for each in served.transports:
        if each.name == "sse" and "prompt_logprobs" in fields:
            continue  # not in streams, whatever they are
        with contextlib.suppress(Unsayable):
            told[each.name] = (await each.ask(fields)).failure
    return told


async def check(served: Served, cases: list[Case]) -> int:
    """How many of them gRPC can say as well. Each names its field, over all alike."""
    wrong, num_everywhere = [], 0
    for fields, field in cases:
        told = await refusals(served, fields)
        num_everywhere += "session" in told
        first = told["json"]
        code = "NOT_FOUND" if field == "model" else "INVALID_ARGUMENT"
        is_right = first is not None and first.code == code and str(first.field).startswith(field)
        if {*told.values()} != {first} or not is_right:
            wrong.append((str(fields)[:200], told))
    assert wrong == []
    assert served.front.engine.submits() == []
    return num_everywhere


@pytest.mark.parametrize("cases", [CHATS, COMPLETIONS], ids=["chats", "completions"])
def test_bad_values_are_refused_naming_the_field(run, serve, cases: list[Case]):
    async def main():
        async with serve() as served:
            assert await check(served, cases) >= 70

    run(main())


def test_what_log_probabilities_cost_is_bounded(run, serve):
    async def main():
        async with serve(max_model_len=100_000) as served:
            assert await check(served, bad_inputs.COSTLY) == len(bad_inputs.COSTLY)

    run(main())


@pytest.mark.parametrize("field", ["ttft_target_s", "tpot_target_s", "tenant"])
def test_what_headers_say_over_http_is_refused_alike(run, serve, field: str):
    """Targets are milliseconds there, so that the words differ."""

    async def main():
        async with serve() as served:
            values = ["", "x" * 129] if field == "tenant" else [0.0, -1.0, 86_401.0]
            for value in values:
                told = await refusals(served, {"prompt": "x", field: value})
                assert {failure.code for failure in told.values()} == {"INVALID_ARGUMENT"}
                assert told["generate"] == told["session"]
                assert told["generate"].field == field

    run(main())


def test_numbers_are_those_of_the_request_and_the_model(run, serve):
    async def main():
        async with serve(max_model_len=32) as served:
            used = (await served.ask({**CHAT, "max_tokens": 1})).usage["prompt_tokens"]
            for field in ("min_tokens", "max_tokens"):
                assert (await served.ask({**CHAT, field: 32 - used})).failure is None
                failure = (await served.ask({**CHAT, field: 33 - used})).failure
                assert failure.field == field
                assert f"leaves {32 - used} of" in failure.message
            failure = (await served.ask({"prompt": [5] * 32, "max_tokens": 1})).failure
            assert "The prompt has 32 tokens" in failure.message

    run(main())


def test_limits_of_the_service_are_told_alike(run, serve):
    async def main():
        async with serve(limits=Limits(max_choices=2, max_stops=1)) as served:
            for given, field in (({"n": 3}, "n"), ({"stop": ["a", "b"]}, "stop")):
                failure = (await served.ask({"prompt": "x", **given})).failure
                assert (failure.code, failure.field) == ("INVALID_ARGUMENT", field)

    run(main())
