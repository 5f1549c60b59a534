"""Conversations that go on over one stream, on the real model."""

from __future__ import annotations

import asyncio

import grpc
import httpx

from cadenza.v1 import generation_pb2 as pb
from cadenza.v1.generation_pb2_grpc import GenerationServiceStub
from tests.e2e.servers import Served
from tests.service.rpc.talking import Talk, turns

QUESTIONS = ("Name three rivers in Europe.", "Which of them is the longest?", "Say it again.")
BLOCK = 16


def token_ids(server: Served, contents: list[str]) -> list[int]:
    """Of a whole chat."""
    messages = [{"role": turn.role, "content": turn.content} for turn in turns(*contents).messages]
    answer = httpx.post(f"{server.http}/tokenize", json={"messages": messages})
    ids: list[int] = answer.json()["tokens"]
    return ids


def test_a_chat_goes_on_from_the_cache_and_says_what_the_whole_chat_says(server: Served):
    async def main() -> None:
        async with grpc.aio.insecure_channel(server.grpc) as channel:
            talk = Talk(GenerationServiceStub(channel))
            settings = {"temperature": 0.0, "max_tokens": 24}
            contents: list[str] = []
            former_tokens = 0
            for turn, question in enumerate(QUESTIONS):
                contents.append(question)
                if turn == 0:
                    await talk.submit("0", chat=turns(question), **settings)
                else:
                    await talk.append(str(turn), str(turn - 1), chat=turns(question), **settings)
                usage = (await talk.end_of(str(turn))).finished.usage
                if turn:
                    # All blocks that the former ones filled; its last token was never computed
                    full = (former_tokens - 1) // BLOCK * BLOCK
                    assert usage.cached_tokens >= full > 0
                assert usage.prompt_tokens == len(token_ids(server, contents))
                await talk.submit(f"whole {turn}", chat=turns(*contents), **settings)
                await talk.end_of(f"whole {turn}")
                assert talk.ids_of(str(turn)) == talk.ids_of(f"whole {turn}")
                former_tokens = usage.prompt_tokens + usage.completion_tokens
                contents.append(talk.text_of(str(turn)))

    asyncio.run(main())


def test_an_output_that_was_cut_goes_on_as_if_it_had_not_been(server: Served):
    async def main() -> None:
        async with grpc.aio.insecure_channel(server.grpc) as channel:
            talk = Talk(GenerationServiceStub(channel))
            given = {"text": "Once upon a time, in a village by the sea, there", "temperature": 0.0}
            await talk.submit("whole", max_tokens=40, ignore_eos=True, **given)
            await talk.end_of("whole")
            await talk.submit("part", max_tokens=25, ignore_eos=True, **given)
            await talk.end_of("part")
            ids = talk.ids_of("part")
            fields = {"temperature": 0.0, "max_tokens": 15, "ignore_eos": True}
            await talk.send(
                pb.Append(request_id="rest", after="part", input=pb.GenerationInput(**fields))
            )
            end = await talk.end_of("rest")

            assert ids + talk.ids_of("rest") == talk.ids_of("whole")
            assert end.finished.usage.cached_tokens > 0

    asyncio.run(main())
