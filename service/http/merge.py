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

    Those that come together are in the order of the generations, before a failure among them. A
    reader that leaves early must close it, which ends the tasks that wait for each generation.

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
            ready = sorted(done, key=reading.__getitem__)
            indices = [reading.pop(task) for task in ready]
            failed = [task for task in ready if task.exception() is not None]
            for index, task in zip(indices, ready, strict=True):
                if task not in failed and (batch := task.result()):
                    reading[_read(generations[index])] = index
                    yield index, batch
            for task in failed:
                task.result()
    finally:
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)


def _read(generation: Generation) -> asyncio.Task[list[Event]]:
    return asyncio.create_task(_next(generation))


async def _next(generation: Generation) -> list[Event]:
    """The next batch; empty at the end, since no task may raise StopAsyncIteration."""
    return await anext(generation, [])
