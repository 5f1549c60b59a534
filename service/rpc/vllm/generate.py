"""The Generate call of vLLM's service: one request, told to its own client."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

from smg_grpc_proto.generated import vllm_engine_pb2 as pb

from cadenza.service.generator import Generator
from cadenza.service.rpc.codec import parts
from cadenza.service.rpc.vllm.answer import Answer
from cadenza.service.rpc.vllm.codec import to_request
from cadenza.service.rpc.vllm.running import Run
from cadenza.service.rpc.vllm.unsupported import refuse_unsupported


async def generate(
    generator: Generator,
    request: pb.GenerateRequest,
    run: Run,
    write: Callable[[bytes], Awaitable[None]],
    wishes: Mapping[str, Any],
) -> None:
    """Write the whole answer, or what there is of it when `run` is aborted.

    `wishes` are fields of a `GenerationRequest` that the message has not. Raises a `RequestError`
    when the request is refused or fails. When this is cancelled, so is the generation.
    """
    refuse_unsupported(request)
    asked = replace(to_request(request), **wishes)
    async with await generator.submit(asked) as generation:
        answer = Answer(generation, request)
        run.launched(generation)
        async for batch in generation:
            for event in batch:
                for index, part in enumerate(parts(event)):
                    if index:
                        await asyncio.sleep(0)  # others' turn
                    for message in answer.told(part):
                        await write(message)
            if answer.is_over:
                return
        assert run.is_aborted, "a generation ended before all of its choices did"
        for message in answer.aborted():
            await write(message)
