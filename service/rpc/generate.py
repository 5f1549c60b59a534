"""The Generate call: one request, its events streamed to its own client."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from dataclasses import replace
from functools import partial

from cadenza.service.generation import Generation
from cadenza.service.generator import Generator
from cadenza.service.request import GenerationRequest
from cadenza.service.rpc.codec import messages, to_request
from cadenza.service.rpc.outbox import Outbox, Write
from cadenza.service.rpc.relay import told
from cadenza.service.rpc.resumable import is_resumable, open_reader, read
from cadenza.service.rpc.taps import Taps
from cadenza.v1 import generation_pb2 as pb

# What waits beside HTTP/2's window of a client that does not read: then tokens wait as numbers
LIMIT_BYTES = 16 * 1024


async def generate(
    generator: Generator, request: pb.GenerateRequest, write: Write, *, time_left_s: float | None
) -> None:
    """Write every event of the request, one message a batch unless a batch is very large.

    The engine ends the request once `time_left_s` has passed, if that is not None. Raises a
    `RequestError` when the request is refused or fails. When cancelled, by the client or by gRPC at
    the deadline, the generation is cancelled before this returns.
    """
    deadline_s = None if time_left_s is None else time.monotonic() + time_left_s
    if is_resumable(request):
        await _read(generator, request, write, deadline_s)
        return
    async with await generator.submit(_request(request, deadline_s)) as generation:
        outbox = Outbox(LIMIT_BYTES)
        telling = asyncio.create_task(_tell(generation, outbox))
        # It is woken for every token. In the call's own task it would be so through all that calls
        # this, which takes longer.
        writing = asyncio.create_task(outbox.write_to(write))
        try:
            await writing
            await telling
        finally:
            telling.cancel()
            writing.cancel()
            await asyncio.gather(telling, writing, return_exceptions=True)


async def _tell(generation: Generation, outbox: Outbox) -> None:
    """Tokens go past this, which costs less than waking whoever reads the generation."""
    try:
        async with aclosing(told(generation, taps=Taps(outbox))) as batches:
            async for events in batches:
                await outbox.room()
                outbox.put(events)
    finally:
        outbox.close()


async def _read(
    generator: Generator, request: pb.GenerateRequest, write: Write, deadline_s: float | None
) -> None:
    """The same for a stream that can be resumed: when cancelled, it waits for the next reader."""
    with open_reader(generator, request, partial(_request, request, deadline_s)) as reader:
        reader.stream.flow.set_deadline(deadline_s)
        async with aclosing(read(reader)) as batches:
            async for events in batches:
                for message in messages(events):
                    await write(message)


def _request(request: pb.GenerateRequest, deadline_s: float | None) -> GenerationRequest:
    return replace(to_request(request.input), deadline_s=deadline_s)
