"""Streams whose clients ask are told what the scheduler does; others see nothing of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from cadenza.service.http.openapi import document
from cadenza.service.limits import Limits
from cadenza.wire.arrays import pack_ids
from cadenza.wire.messages import Finished, Step

from .conftest import Served
from .schemas import Document

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "x"}]},
    COMPLETIONS: {"prompt": "x"},
}
ASKING = {"stream_options": {"include_notices": True}}
DOCUMENT = Document(document("1", Limits(), with_admin=True))

Told = list[tuple[str | None, Any]]
"""Each event's type, None being none, and its data: "[DONE]" or JSON."""


async def stream(served: Served, path: str, body: dict[str, Any]) -> Told:
    response = await served.http.post(path, json={**body, "stream": True})
    assert response.status_code == 200, response.text
    assert response.text.endswith("\n\n")
    return [read(block) for block in response.text.removesuffix("\n\n").split("\n\n")]


def read(block: str) -> tuple[str | None, Any]:
    *types, data = block.split("\n")
    kinds = [each.removeprefix("event: ") for each in types]
    text = data.removeprefix("data: ")
    return (kinds[0] if kinds else None), (text if text == "[DONE]" else json.loads(text))


def notices(told: Told) -> list[dict[str, Any]]:
    """What each says of its own, held against the document."""
    own = []
    for kind, data in told:
        if kind is None:
            continue
        assert kind == data["object"] == "cadenza.notice"
        assert not DOCUMENT.faults(data, {"$ref": "#/components/schemas/Notice"})
        own.append(
            {name: data[name] for name in data.keys() - {"id", "object", "created", "model"}}
        )
    return own


async def disturbed(served: Served, answer: Callable[[], Any]) -> Any:
    """An answer during which every choice is preempted, comes back, is parked and goes on."""
    engine = served.front.engine
    engine.auto = False
    served.front.says("abcd")
    call = asyncio.create_task(answer())
    await engine.until(lambda: bool(engine.waiting))
    engine.step(2)
    rows = [*engine.running]
    engine.preempted = rows
    engine.step()
    engine.admitted_again = rows
    engine.step()
    for kind in ("parked", "unparked"):
        for row in rows:
            engine.decide(kind, row)
        engine.tell_decisions()
    engine.resume()
    told = await call
    await engine.until(served.front.is_clean)
    return told


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_who_asks_is_told_in_order(run, serve, path: str):
    async def main():
        async with serve() as served:
            told = await disturbed(
                served, lambda: stream(served, path, {**BODIES[path], **ASKING, "n": 2})
            )
            assert notices(told) == [
                {"notice": "queued", "prompt": 0, "queue_position": 0},
                {"notice": "admitted", "prompt": 0, "cached_tokens": 3},
                *(
                    {"notice": kind, "choice": choice}
                    for kind in ("preempted", "resumed", "parked", "unparked")
                    for choice in (0, 1)
                ),
            ]
            assert told[0][1]["notice"] == "queued"
            assert told[-1] == (None, "[DONE]")
            assert [kind for kind, _ in told[-3:]] == [None] * 3
            heads = {(data["id"], data["created"], data["model"]) for _, data in told[:-1]}
            assert len(heads) == 1

    run(main())


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("options", [{}, {"stream_options": {"include_notices": False}}])
def test_who_does_not_ask_sees_none(run, serve, path: str, options: dict[str, Any]):
    """Byte for byte what an undisturbed stream is, but for its name and time."""

    async def main():
        async with serve() as served:
            body = {**BODIES[path], **options}
            told = await disturbed(served, lambda: stream(served, path, body))
            assert notices(told) == []
            quiet = await stream(served, path, body)
            assert texts(told) == texts(quiet) == "abcd"

    run(main())


def texts(told: Told) -> str:
    parts = [part for kind, data in told[:-1] if kind is None for part in data["choices"]]
    return "".join(part.get("text") or part.get("delta", {}).get("content", "") for part in parts)


def test_the_openai_client_sees_none_unless_it_asks(run, serve):
    async def main():
        async with serve() as served, served.openai as client:

            async def chunks(**more: Any) -> list[Any]:
                ask = client.chat.completions.create
                stream = await ask(model="tiny", stream=True, **BODIES[CHAT], **more)
                return [chunk async for chunk in stream]

            for more in ({}, {"stream_options": {"include_usage": True}}):
                told = await disturbed(served, partial(chunks, **more))
                assert {chunk.object for chunk in told} == {"chat.completion.chunk"}

            told = await disturbed(served, partial(chunks, **ASKING))
            moved = [chunk for chunk in told if chunk.object == "cadenza.notice"]
            assert [chunk.notice for chunk in moved][:2] == ["queued", "admitted"]
            said = [chunk for chunk in told if chunk.object != "cadenza.notice"]
            text = "".join(part.delta.content or "" for chunk in said for part in chunk.choices)
            assert text == "abcd"

    run(main())


def test_the_place_in_the_queue_is_told_before_there_is_a_seat(run, serve):
    """Every prompt of a call has its own, and choices are counted through all of them."""

    async def main():
        async with serve() as served:
            engine = served.front.engine
            engine.auto = False
            first = asyncio.create_task(served.http.post(COMPLETIONS, json={"prompt": "x", "n": 3}))
            await engine.until(lambda: len(engine.waiting) == 3)
            body = {"prompt": ["x", "y"], "n": 2, "stream": True, **ASKING}
            reader, writer = await served.raw(COMPLETIONS, body)
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200")
            places = await reader.readuntil(b"\n\n\r\n")
            assert places.count(b'"queue_position":3') == 1
            assert places.count(b'"queue_position":5') == 1
            writer.close()
            await engine.until(lambda: len(engine.waiting) == 3)
            engine.resume()
            await first

            engine.auto = False
            call = asyncio.create_task(
                stream(served, COMPLETIONS, {"prompt": ["x", "y"], "n": 2, **ASKING})
            )
            await engine.until(lambda: len(engine.waiting) == 4)
            engine.step()
            engine.preempted = [max(engine.running)]
            engine.step()
            engine.resume()
            assert {"notice": "preempted", "choice": 3} in notices(await call)

    run(main())


@pytest.mark.parametrize("begun", [False, True])
def test_a_failure_is_the_last_event(run, serve, begun: bool):
    """The stream has begun with the first notice, so that no failure is an HTTP error any more."""

    async def main():
        async with serve() as served:
            engine = served.front.engine
            engine.auto = False
            call = asyncio.create_task(stream(served, CHAT, {**BODIES[CHAT], **ASKING}))
            await engine.until(lambda: bool(engine.waiting))
            if begun:
                engine.step()
            [row] = [*engine.waiting, *engine.running]
            engine.fail("no luck", row)
            told = await call
            kinds = [each["notice"] for each in notices(told)]
            assert kinds == ["queued", "admitted"][: 1 + begun]
            kind, last = told[-1]
            assert (kind, last["error"]["message"]) == (None, "no luck")

    run(main())


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"stream": False, **ASKING}, "stream_options"),
        (
            {"stream": True, "stream_options": {"include_notices": 1}},
            "stream_options.include_notices",
        ),
    ],
)
def test_notices_are_of_streams_alone(run, serve, body: dict[str, Any], param: str):
    async def main():
        async with serve() as served:
            refused = await served.http.post(CHAT, json={**BODIES[CHAT], **body})
            assert refused.status_code == 400
            assert refused.json()["error"]["param"] == param

    run(main())


@pytest.mark.parametrize("path", BODIES)
def test_the_first_text_that_comes_long_after_the_admission_is_opened_as_any(run, serve, path):
    """The stream has begun with notices, and its tokens go past whoever reads."""

    async def main():
        async with serve() as served:
            engine = served.front.engine
            engine.auto = False
            call = asyncio.create_task(stream(served, path, {**BODIES[path], **ASKING}))
            await engine.until(lambda: bool(engine.waiting))
            [number] = engine.waiting
            words = served.front.tokenizer.encode_text("ab")
            frame = {"step_id": 1, "counters": engine.counters()}
            engine.send(
                Step(**frame, admitted=pack_requests([number]), admitted_cached=pack_ids([0]))
            )
            await served.front.told()
            ends = (Finished.NOT, Finished.LENGTH)
            for token, end in zip(words, ends, strict=True):
                engine.send(
                    Step(
                        **frame,
                        requests=pack_requests([number]),
                        tokens=pack_ids([token]),
                        finished=bytes([end]),
                    )
                )
                await served.front.told()
            told = [data for kind, data in await call if kind is None]
            plain = [chunk["choices"][0] for chunk in told if chunk != "[DONE]"]
            texts = [each.get("text", each.get("delta", {}).get("content")) for each in plain]

            assert [text for text in texts if text] == ["a", "b"]
            if path == CHAT:
                assert plain[0]["delta"] == {"role": "assistant", "content": ""}

    run(main())


def pack_requests(numbers: list[int]) -> bytes:
    return np.array(numbers, "<i8").tobytes()
