"""A request's events, those that come by themselves and all others."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from cadenza.service.events import Delta
from cadenza.service.request import GenerationRequest
from cadenza.service.rpc.codec import BATCH_BYTES
from cadenza.service.rpc.outbox import Outbox
from cadenza.service.rpc.relay import relay
from cadenza.service.rpc.taps import Taps
from cadenza.v1 import generation_pb2 as pb


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("is_open", [True, False])
async def test_all_is_told_in_order_whichever_way_it_goes(open_front, is_open, n):
    outbox = Outbox(1 << 20 if is_open else 0)
    read: list[bytes] = []  # what does not come by itself
    async with open_front() as front:
        front.engine.auto = False
        front.says("hello")
        request = GenerationRequest(text="x", max_tokens=5, n=n)
        generation = await front.generator.submit(request)

        async def put_all() -> None:
            async with aclosing(relay(generation, "r", Taps(outbox))) as batches:
                async for events in batches:
                    read.extend(events)
                    outbox.put(events)

        reading = asyncio.create_task(put_all())
        await front.engine.until(lambda: bool(front.engine.waiting))
        for _ in range(5):
            await front.step()
        await reading
    told = await outbox.take()
    events = pb.SessionResponse.FromString(b"".join(told)).events
    kinds = [event.WhichOneof("event") for event in events]

    assert (sum(map(len, read)) < sum(map(len, told))) is is_open
    assert kinds[:2] == ["accepted", "notice"]
    assert kinds[-1] == "finished"
    assert kinds.count("choice_finished") == n
    ended = [event.choice_finished for event in events if event.HasField("choice_finished")]
    generated = sum(choice.completion_tokens for choice in ended)
    assert events[-1].finished.usage.completion_tokens == generated
    assert events[-1].finished.usage.cached_tokens == events[1].notice.admitted.cached_tokens
    for choice in range(n):
        tokens = [event.tokens for event in events if event.HasField("tokens")]
        assert "".join(each.text for each in tokens if each.choice == choice) == "hello"


async def test_a_batch_of_large_events_is_told_in_parts(generator):
    generation = await generator.submit(GenerationRequest(text="x", n=16))
    large = [Delta(choice=choice, text="x" * 250_000, token_ids=[1]) for choice in range(16)]
    generation.feed(*large)
    for choice in range(16):
        generation.end(choice)
    async with aclosing(relay(generation)) as batches:
        told = [events async for events in batches]
    events = pb.SessionResponse.FromString(b"".join(map(b"".join, told))).events

    choices = [event.tokens.choice for event in events if event.HasField("tokens")]
    assert choices == [*range(16)]
    assert max(sum(map(len, events)) for events in told) < 2 * BATCH_BYTES
