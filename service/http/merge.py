"""Several generations read as one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from operator import itemgetter

from cadenza.service.events import Event
from cadenza.service.generation import Generation


async def merge(
    generations: Sequence[Generation],
) -> AsyncGenerator[tuple[int, list[Event]], None]:
    """Each batch with the index of its generation, as they come, until all have ended.

    Those that are read in one turn of the loop are in the order of the generations, and all that
    has come is told before a failure. A reader that leaves early must close it, which ends the
    tasks that wait for each generation.

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
            if failed:
                for index, batch in _come(reading, generations):
                    yield index, batch
                failed[0].result()
    finally:
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)


def _come(
    reading: Mapping[asyncio.Task[list[Event]], int], generations: Sequence[Generation]
) -> list[tuple[int, list[Event]]]:
    """What has come of those that are read, as not all of their readers had a turn yet."""
    come: list[tuple[int, list[Event]]] = []
    for task, index in sorted(reading.items(), key=itemgetter(1)):
        read = task.result() if task.done() and task.exception() is None else []
        if batch := read + generations[index].take():
            come.append((index, batch))
    return come


def _read(generation: Generation) -> asyncio.Task[list[Event]]:
    return asyncio.create_task(_next(generation))


async def _next(generation: Generation) -> list[Event]:
    """The next batch; empty at the end, since no task may raise StopAsyncIteration."""
    return await anext(generation, [])
