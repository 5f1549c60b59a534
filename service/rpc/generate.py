"""The Generate call: one request, its events streamed to its own client."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import TypeAlias

from cadenza.service.generator import Generator
from cadenza.service.rpc.codec import chunks
from cadenza.service.rpc.relay import relay
from cadenza.v1 import generation_pb2 as pb

Write: TypeAlias = Callable[[pb.GenerateResponse], Awaitable[None]]


async def generate(generator: Generator, request: pb.GenerateRequest, write: Write) -> None:
    """Write every event of the request, one message a batch unless a batch is very large.

    Raises a `RequestError` when the request is refused or fails. When cancelled, by the client or
    by its deadline, the generation is cancelled before this returns.
    """
    async with aclosing(relay(generator, request.input)) as batches:
        async for events in batches:
            for chunk in chunks(events):
                await write(pb.GenerateResponse(events=chunk))
