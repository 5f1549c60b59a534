"""A stream, joined, is the answer that is not streamed, whatever options meet."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from cadenza.wire.messages import Step
from tests.streams import CHAT, COMPLETIONS, assert_alike, body_of, every, pairs, share

from ..fake_engine import FakeEngine
from .conftest import Served

OPTIONS: dict[str, list[Any]] = {
    "path": [CHAT, COMPLETIONS],
    "prompt": ["hello", "příliš 😀"],
    "n": [None, 3],
    "stop": [None, "o", ["zz", "👩‍👧"], "ld"],
    "include_stop_str_in_output": [None, True],
    "logprobs": [None, 0, 2],
    "echo": [None, True],
    "usage": [None, "once", "always"],
    "max_tokens": [40, 9, 1],  # 9 cuts a character
    "min_tokens": [None, 1],
    "skip_special_tokens": [None, False],
}
SAID = "wörld 👨‍👩‍👧<|im_start|> hello"


async def check(served: Served, given: dict[str, Any]) -> None:
    path, body = body_of(given)
    events = await served.events(path, body)
    whole = await served.http.post(path, json={**body, "stream_options": None})
    assert_alike(path, body, events, whole.json())


async def check_all(served: Served, combinations: Iterable[dict[str, Any]]) -> None:
    served.front.says(SAID)
    for given in combinations:
        try:
            await check(served, given)
        except AssertionError as error:
            raise AssertionError(f"{given}: {error}") from error
    await served.front.engine.until(served.front.is_clean)


def test_joined_streams_are_the_whole_answer(run, serve):
    """Every two values of different options meet."""

    async def main():
        async with serve() as served:
            await check_all(served, pairs(OPTIONS))

    run(main())


FIRST = {name: OPTIONS[name] for name in ("path", "prompt", "n", "stop")}
REST = {name: values for name, values in OPTIONS.items() if name not in FIRST}


@pytest.mark.extra
@pytest.mark.parametrize(("nth", "first"), list(enumerate(every(FIRST))), ids=str)
def test_joined_streams_are_the_whole_answer_in_many_combinations(run, serve, nth, first):
    async def main():
        async with serve() as served:
            await check_all(served, ({**first, **rest} for rest in share(REST, nth)))

    run(main())


def _admitted(engine: FakeEngine) -> bytes:
    return np.array([*engine.waiting], dtype="<i8").tobytes()


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("echo", [None, True])
def test_nothing_is_sent_before_the_first_token(run, serve, path, echo):
    """Not even the headers, so that a failure until then has a status of its own."""

    async def main():
        async with serve() as served:
            engine = served.front.engine
            engine.auto = False
            served.front.says("ab")
            _, body = body_of(
                {"path": path, "prompt": "xyz", "usage": "once", "echo": echo, "logprobs": 1}
            )
            reader, writer = await served.raw(path, {**body, "stream": True})
            await engine.until(lambda: bool(engine.waiting))
            engine.send(Step(step_id=0, admitted=_admitted(engine), admitted_cached=b"\0" * 4))
            await served.http.get("/health")  # the loop has turned
            assert not reader._buffer
            engine.step()
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200")
            assert b"text/event-stream" in head
            writer.close()
            await engine.until(served.front.is_clean)

    run(main())


@pytest.mark.parametrize("usage", [None, "once", "always"])
@pytest.mark.parametrize(
    "more", [{"path": CHAT, "n": 2}, {"path": COMPLETIONS, "n": 2}, {"path": COMPLETIONS}]
)
def test_one_choice_that_fails_ends_the_stream_for_all(run, serve, usage, more):
    """Another's end stands; nobody is told of usage or of a good end, and nothing runs on."""

    async def main():
        async with serve() as served:
            engine = served.front.engine
            engine.auto = False
            engine.reply = lambda submit: [5] * (1 if submit.request == first else 50)
            first = served.front.client.take_numbers(1) + 1
            prompt = "x" if "n" in more else ["x", "y"]
            path, body = body_of({**more, "prompt": prompt, "usage": usage, "max_tokens": 40})
            call = asyncio.create_task(served.events(path, body))
            await engine.until(lambda: len(engine.waiting) == 2)
            engine.step(3)
            [other] = engine.running
            engine.fail("no luck", other)
            *events, error = await call

            assert "[DONE]" not in events
            assert error["error"]["message"] == "no luck"
            ends = [part["finish_reason"] for event in events for part in event["choices"]]
            assert [end for end in ends if end] == ["stop"]
            assert all(event["choices"] for event in events)
            await engine.until(served.front.is_clean)

    run(main())
