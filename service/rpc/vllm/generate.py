"""The Generate call of vLLM's service: one request, told to its own client."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from smg_grpc_proto.generated import vllm_engine_pb2 as pb

from cadenza.service.events import Event
from cadenza.service.generator import Generator
from cadenza.service.rpc.codec import parts
from cadenza.service.rpc.vllm.answer import Answer
from cadenza.service.rpc.vllm.codec import to_request
from cadenza.service.rpc.vllm.running import Run
from cadenza.service.rpc.vllm.unsupported import refuse_unsupported

_Write = Callable[[bytes], Awaitable[None]]


async def generate(
    generator: Generator,
    request: pb.GenerateRequest,
    run: Run,
    write: _Write,
    wishes: Mapping[str, Any],
) -> None:
    """Write the whole answer, or what there is of it when `run` is aborted.

    `wishes` are fields of a `GenerationRequest` that the message has not. Raises a `RequestError`
    when the request is refused or fails. When this is cancelled, so is the generation.
    """
    refuse_unsupported(request)
    asked = replace(to_request(request), **wishes)
    generation = await run.launch(generator.submit(asked), asked.deadline_s)
    if generation is None:
        # Nobody has looked at how many choices it wants
        num_choices = min(asked.n or 1, generator.limits.max_choices)
        await _write_all(Answer(request, num_choices).aborted(), write)
        return
    async with generation:
        answer = Answer(request, generation.num_choices, generation.prompt_tokens)
        async for batch in generation:
            await _tell(answer, batch, write)
            if answer.is_over:
                return
        assert run.is_aborted, "a generation ended before all of its choices did"
        await _tell(answer, run.unread, write)
        await _write_all(answer.aborted(), write)


async def _tell(answer: Answer, events: Iterable[Event], write: _Write) -> None:
    for event in events:
        for index, part in enumerate(parts(event)):
            if index:
                await asyncio.sleep(0)  # others' turn
            await _write_all(answer.told(part), write)


async def _write_all(messages: Iterable[bytes], write: _Write) -> None:
    for message in messages:
        await write(message)
