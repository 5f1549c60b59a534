"""One request's life as encoded events: the same for Generate and Session."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator

from cadenza.service.events import Admitted, Delta, Event, Finished
from cadenza.service.generation import Generation
from cadenza.service.rpc import codec
from cadenza.service.rpc.taps import Taps
from cadenza.service.rpc.transcripts import Transcript
from cadenza.v1 import generation_pb2 as pb


class _Telling:
    """Encodes what a generation tells, counts what it uses, and sees when it is over."""

    def __init__(
        self, generation: Generation, request_id: str, transcript: Transcript | None
    ) -> None:
        self._request_id = request_id
        self._transcript = transcript
        self._unfinished = generation.num_choices
        self._usage = pb.Usage(prompt_tokens=generation.prompt_tokens)

    def encoded(self, batch: list[Event]) -> Iterator[list[bytes]]:
        """All of a batch, in several lists where it is large or has many log-probabilities."""
        events: list[bytes] = []
        num_bytes = 0
        for event in batch:
            if not isinstance(event, Delta):
                self._count(event)
            if self._transcript is not None:
                self._transcript.add(event)
            for index, piece in enumerate(codec.parts(event)):
                if index or num_bytes >= codec.BATCH_BYTES:
                    yield events
                    events, num_bytes = [], 0
                told = codec.encoded(self._request_id, piece)
                events.append(told)
                num_bytes += len(told)
        if self.is_over:
            events.append(codec.finished(self._request_id, self._usage))
        yield events

    def _count(self, event: Event) -> None:
        if isinstance(event, Finished):
            self._usage.completion_tokens += event.completion_tokens
            self._unfinished -= 1
        elif isinstance(event, Admitted):
            self._usage.cached_tokens = event.cached_tokens

    @property
    def is_over(self) -> bool:
        """Whether every choice has finished."""
        return not self._unfinished


async def relay(
    generation: Generation,
    request_id: str = "",
    taps: Taps | None = None,
    transcript: Transcript | None = None,
) -> AsyncGenerator[list[bytes], None]:
    """All of `told`. Closing the iterator, or cancelling it, cancels the generation.

    Use `contextlib.aclosing`, and iterate at once.
    """
    async with generation:
        async for events in told(generation, request_id, taps, transcript):
            yield events


async def told(
    generation: Generation,
    request_id: str = "",
    taps: Taps | None = None,
    transcript: Transcript | None = None,
) -> AsyncGenerator[list[bytes], None]:
    """Batches of events from `accepted` to `finished`; the last batch ends with `finished`.

    Tokens that come while the caller waits for a batch go through `taps` by themselves, as long as
    there is room: it must have put all that came before into their outbox. All that is told is
    added to `transcript`.

    Raises a `RequestError` in place of what is missing.
    """
    yield [codec.accepted(request_id, generation)]
    telling = _Telling(generation, request_id, transcript)
    if taps is not None:
        taps.open(generation, request_id, transcript)
    async for batch in generation:
        for index, events in enumerate(telling.encoded(batch)):
            if index:
                await asyncio.sleep(0)  # others' turn
            yield events
        if telling.is_over:
            return
    raise AssertionError("a generation ended before all of its choices did")
