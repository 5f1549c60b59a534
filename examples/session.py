"""Ask several questions at once over one gRPC stream, and print each answer as it grows.

python examples/session.py localhost:50051 "What is the capital of France?" "Name three rivers."
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

import grpc

from cadenza.v1 import generation_pb2 as pb
from cadenza.v1.generation_pb2_grpc import GenerationServiceStub


def submit(request_id: str, question: str) -> pb.SessionRequest:
    message = pb.ChatMessage(role="user", content=question)
    generation = pb.GenerationInput(
        chat=pb.Chat(messages=[message]), max_tokens=100, temperature=0.0
    )
    return pb.SessionRequest(submit=pb.Submit(request_id=request_id, input=generation))


async def ask(address: str, questions: Sequence[str]) -> None:
    answers = dict.fromkeys(questions, "")
    async with grpc.aio.insecure_channel(address) as channel:
        session = GenerationServiceStub(channel).Session()
        for question in questions:
            await session.write(submit(question, question))
        await session.done_writing()
        async for response in session:
            for event in response.events:
                match event.WhichOneof("event"):
                    case "tokens":
                        answers[event.request_id] += event.tokens.text
                    case "finished":
                        sys.stdout.write(f"{event.request_id}\n  {answers[event.request_id]}\n")
                    case "failed":
                        sys.stdout.write(f"{event.request_id}\n  failed: {event.failed.message}\n")


if __name__ == "__main__":
    asyncio.run(ask(sys.argv[1], sys.argv[2:]))
