"""The prompt in a gRPC answer, with the real generator between it and a fake engine."""

from __future__ import annotations

import math
from typing import Any

from cadenza.v1 import generation_pb2 as pb
from cadenza.v1.generation_pb2_grpc import GenerationServiceStub


async def ask(stub: GenerationServiceStub, **fields: Any) -> list[pb.Event]:
    call = stub.Generate(pb.GenerateRequest(input=pb.GenerationInput(**fields)))
    return [event async for response in call for event in response.events]


def of_kind(events: list[pb.Event], kind: str) -> list[Any]:
    return [getattr(event, kind) for event in events if event.HasField(kind)]


def ids(*tokens: int) -> pb.TokenIds:
    return pb.TokenIds(ids=tokens)


def test_a_prompt_is_echoed_with_its_logprobs_and_counts_as_no_output(run, serve_front):
    async def main():
        async with serve_front(max_model_len=1000) as (front, stub):
            num = 300  # more than one event may have
            events = await ask(stub, token_ids=ids(*[5] * num), echo=True, logprobs=1, max_tokens=2)
            tokens = of_kind(events, "tokens")

            text = front.tokenizer.decode([5] * num)
            assert "".join(part.text for part in tokens).startswith(text)
            assert sum(len(part.token_ids) for part in tokens) == 2
            positions = [position for part in tokens for position in part.logprobs]
            assert len(positions) == num + 2
            assert not positions[0].sampled.HasField("logprob")
            told = [position.sampled.logprob for position in positions[1:num]]
            assert told == [-float(place) for place in range(1, num)]
            assert [position.sampled.rank for position in positions[1:num]] == [*range(1, num)]
            assert not positions[num].sampled.HasField("rank")
            assert events[-1].finished.usage.completion_tokens == 2

    run(main())


def test_prompt_logprobs_come_once_before_all_tokens(run, serve_front):
    async def main():
        async with serve_front(max_model_len=1000) as (_, stub):
            num = 300
            events = await ask(
                stub, token_ids=ids(*[7] * num), prompt_logprobs=2, max_tokens=1, n=2
            )
            kinds = [event.WhichOneof("event") for event in events]
            scored = [
                event.prompt_logprobs for event in events if event.HasField("prompt_logprobs")
            ]

            assert kinds.index("tokens") > max(
                place for place, kind in enumerate(kinds) if kind == "prompt_logprobs"
            )
            assert [part.first for part in scored] == [0, 256]
            positions = [position for part in scored for position in part.logprobs]
            assert len(positions) == num
            assert not positions[0].top
            assert [token.rank for token in positions[-1].top] == [1, 2]
            assert math.isclose(positions[-1].sampled.logprob, -(num - 1))

    run(main())
