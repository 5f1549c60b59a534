"""One request's life as protobuf events: the same for Generate and Session."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator

from cadenza.service.events import Admitted, Event, Finished
from cadenza.service.generation import Generation
from cadenza.service.rpc import codec
from cadenza.v1 import generation_pb2 as pb


class _Usage:
    """Counts what a generation uses, and sees when it is over."""

    def __init__(self, generation: Generation) -> None:
        self._unfinished = generation.num_choices
        self._usage = pb.Usage(prompt_tokens=generation.prompt_tokens)

    def add(self, event: Event) -> None:
        if isinstance(event, Admitted):
            self._usage.cached_tokens = event.cached_tokens
        elif isinstance(event, Finished):
            self._usage.completion_tokens += event.completion_tokens
            self._unfinished -= 1

    @property
    def final(self) -> pb.Usage | None:
        """The whole usage, once every choice has finished."""
        return None if self._unfinished else self._usage


async def relay(
    generation: Generation, request_id: str = ""
) -> AsyncGenerator[list[pb.Event], None]:
    """Batches of events from `accepted` to `finished`; the last batch ends with `finished`.

    Raises a `RequestError` in place of what is missing. Closing the iterator, or cancelling it,
    cancels the generation; use `contextlib.aclosing`, and iterate at once.
    """
    async with generation:
        yield [codec.accepted(request_id, generation)]
        usage = _Usage(generation)
        async for batch in generation:
            for index, events in enumerate(_batches(request_id, batch, usage)):
                if index:
                    await asyncio.sleep(0)  # others' turn
                yield events
            if usage.final is not None:
                return
    raise AssertionError("a generation ended before all of its choices did")


def _batches(request_id: str, batch: list[Event], usage: _Usage) -> Iterator[list[pb.Event]]:
    """All of a batch, in several lists where it has many log-probabilities."""
    events: list[pb.Event] = []
    for event in batch:
        usage.add(event)
        for index, piece in enumerate(codec.parts(event)):
            if index:
                yield events
                events = []
            events.append(codec.to_event(request_id, piece))
    if (final := usage.final) is not None:
        events.append(codec.finished(request_id, final))
    yield events
