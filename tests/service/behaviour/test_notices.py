"""A stream of events that asks for notices is told what gRPC's streams are, in the same order."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import grpc
import httpx

from cadenza.v1 import generation_pb2 as pb
from cadenza.v1.generation_pb2_grpc import GenerationServiceStub

from .conftest import Served

Happened = tuple[Any, ...]
"""What, and of which choice or with which number."""


async def over_http(http: httpx.AsyncClient) -> list[Happened]:
    body = {"prompt": "x", "n": 2, "max_tokens": 40, "stream": True}
    body["stream_options"] = {"include_notices": True}
    response = await http.post("/v1/completions", json=body)
    told: list[Happened] = []
    for block in response.text.removesuffix("\n\n").split("\n\n")[:-1]:
        kind, _, data = block.rpartition("data: ")
        event = json.loads(data)
        if kind:
            number = event.get("choice", event.get("queue_position", event.get("cached_tokens")))
            told.append((event["notice"], number))
        else:
            [part] = event["choices"]
            told += [("text", part["index"])] * bool(part["text"])
            told += [("end", part["index"])] * bool(part["finish_reason"])
    return told


async def over_grpc(stub: GenerationServiceStub) -> list[Happened]:
    request = pb.GenerationInput(text="x", n=2, max_tokens=40)
    told: list[Happened] = []
    async for response in stub.Generate(pb.GenerateRequest(input=request)):
        for event in response.events:
            match event.WhichOneof("event"):
                case "accepted":
                    told.append(("queued", event.accepted.queue_position))
                case "notice":
                    kind = event.notice.WhichOneof("notice")
                    [(_, number)] = getattr(event.notice, kind).ListFields() or [(None, 0)]
                    told.append((kind, number))
                case "tokens":
                    told += [("text", event.tokens.choice)] * bool(event.tokens.text)
                case "choice_finished":
                    told.append(("end", event.choice_finished.choice))
    return told


async def disturb(served: Served) -> None:
    """A life with everything in it that a scheduler does."""
    engine = served.front.engine
    await engine.until(lambda: len(engine.waiting) == 3)
    engine.step(2)
    _, *rows = engine.running
    engine.preempted = rows[:1]
    engine.step()
    engine.admitted_again = rows[:1]
    engine.step()
    for kind in ("parked", "unparked"):
        engine.decide(kind, rows[1])
        engine.tell_decisions()
    engine.resume()


def test_both_are_told_the_same(run, serve):
    async def main():
        async with serve() as served:
            served.front.says("abcdef")
            engine = served.front.engine
            told = []
            async with (
                httpx.AsyncClient(base_url=served.http, timeout=20) as http,
                grpc.aio.insecure_channel(served.grpc) as channel,
            ):
                stub = GenerationServiceStub(channel)
                for ask in (lambda: over_http(http), lambda: over_grpc(stub)):
                    engine.auto = False
                    before = asyncio.create_task(served.transports[0].ask({"prompt": "x"}))
                    await engine.until(lambda: bool(engine.waiting))
                    call = asyncio.create_task(ask())
                    await disturb(served)
                    told.append(await call)
                    await before

            first, second = (
                [each for each in happened if each[0] not in ("text", "end")] for happened in told
            )
            assert (
                first
                == second
                == [
                    ("queued", 1),
                    ("admitted", 3),
                    ("preempted", 0),
                    ("resumed", 0),
                    ("parked", 1),
                    ("unparked", 1),
                ]
            )
            for happened in told:
                assert happened[-1][0] == "end"
                before = happened.index(("text", 0)), happened.index(("preempted", 0))
                assert before == (*sorted(before),)

    run(main())
