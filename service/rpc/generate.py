"""The Generate call: one request, its events streamed to its own client."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import TypeAlias

from cadenza.service.generator import Generator
from cadenza.service.rpc.codec import messages, to_request
from cadenza.service.rpc.relay import relay
from cadenza.v1 import generation_pb2 as pb

Write: TypeAlias = Callable[[bytes], Awaitable[None]]  # an encoded response


async def generate(
    generator: Generator, request: pb.GenerateRequest, write: Write, *, time_left_s: float | None
) -> None:
    """Write every event of the request, one message a batch unless a batch is very large.

    The engine ends the request once `time_left_s` has passed, if that is not None. Raises a
    `RequestError` when the request is refused or fails. When cancelled, by the client or by gRPC at
    the deadline, the generation is cancelled before this returns.
    """
    deadline_s = None if time_left_s is None else time.monotonic() + time_left_s
    generation = await generator.submit(replace(to_request(request.input), deadline_s=deadline_s))
    async with aclosing(relay(generation)) as batches:
        async for events in batches:
            for message in messages(events):
                await write(message)
