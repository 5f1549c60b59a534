"""Several generations read as one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

from cadenza.service.events import Event
from cadenza.service.generation import Generation


async def merge(
    generations: Sequence[Generation],
) -> AsyncGenerator[tuple[int, list[Event]], None]:
    """Each batch with the index of its generation, as they come, until all have ended.

    A reader that leaves early must close it, which ends the tasks that wait for each generation.

    Raises:
        GenerationFailed, DeadlineExceeded: one has failed. The others are the caller's to cancel.
    """
    if len(generations) == 1:
        async for batch in generations[0]:
            yield 0, batch
        return
    reading = {_read(generation): index for index, generation in enumerate(generations)}
    try:
        while reading:
            done, _ = await asyncio.wait(reading, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                index = reading.pop(task)
                if batch := task.result():
                    reading[_read(generations[index])] = index
                    yield index, batch
    finally:
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)


def _read(generation: Generation) -> asyncio.Task[list[Event]]:
    return asyncio.create_task(_next(generation))


async def _next(generation: Generation) -> list[Event]:
    """The next batch; empty at the end, since no task may raise StopAsyncIteration."""
    return await anext(generation, [])
