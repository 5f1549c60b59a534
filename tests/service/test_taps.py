"""What a generation's tap takes, and what is left to its reader."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from cadenza.service.events import Delta, Event, Finished
from cadenza.service.generation import Generation
from cadenza.service.request import GenerationRequest


class Reader:
    """Reads a generation to its end, and notes who had what."""

    def __init__(self, generation: Generation, take_now: Callable[[], bool] | None = None) -> None:
        self.tapped: list[list[Event]] = []
        self.read: list[list[Event]] = []
        self._generation = generation
        generation.tap(take_now or self._take)
        self.task = asyncio.create_task(self._iterate())

    def _take(self) -> bool:
        self.tapped.append(self._generation.take())
        return True

    async def _iterate(self) -> None:
        async for batch in self._generation:
            self.read.append(batch)

    @property
    def num_tapped(self) -> list[int]:
        """Tokens in each batch that was tapped."""
        return [num_tokens(batch) for batch in self.tapped]


def num_tokens(batch: list[Event]) -> int:
    return sum(len(event.token_ids) for event in batch if isinstance(event, Delta))


async def launched(front, **more: object) -> Generation:
    """A generation that waits for the engine's steps."""
    front.engine.auto = False
    request = GenerationRequest(text="hello", ignore_eos=True, **more)  # type: ignore[arg-type]
    generation: Generation = await front.generator.submit(request)
    await front.engine.until(lambda: bool(front.engine.waiting))
    return generation


@pytest.mark.parametrize("n", [1, 3])
def test_a_step_is_tapped_once_and_wakes_nobody_short_of_the_end(run, open_front, n):
    async def main():
        async with open_front() as front:
            reader = Reader(await launched(front, n=n, max_tokens=3))
            await asyncio.sleep(0)
            await front.step()
            first = sum(reader.num_tapped)
            await front.step()

            assert first == n
            assert reader.num_tapped[-1] == n
            assert reader.read == []
            await front.step()
            await reader.task
            [last] = reader.read
            assert num_tokens(last) + sum(reader.num_tapped) == 3 * n
            assert sum(isinstance(event, Finished) for event in last) == n

    run(main())


def test_what_the_tap_leaves_is_the_readers(run, open_front):
    async def main():
        async with open_front() as front:
            reader = Reader(await launched(front, max_tokens=2), lambda: False)
            await asyncio.sleep(0)
            await front.step()
            await front.step()
            await reader.task

            assert sum(map(num_tokens, reader.read)) == 2

    run(main())


def test_the_tap_takes_nothing_while_the_reader_is_elsewhere(run, open_front):
    async def main():
        async with open_front() as front:
            generation = await launched(front, max_tokens=9)
            tapped: list[int] = []
            generation.tap(lambda: bool(tapped.append(1)))
            await front.step()
            batch = await anext(generation)

            assert tapped == []
            assert num_tokens(batch) == 1
            generation.cancel()

    run(main())


def test_what_the_tap_raises_is_raised_to_the_reader_alone(run, open_front):
    def broken() -> bool:
        raise ValueError("broken")

    async def main():
        async with open_front() as front:
            reader = Reader(await launched(front, max_tokens=9), broken)
            other = Reader(await launched(front, max_tokens=2))
            await asyncio.sleep(0)
            await front.step()
            await front.step()

            with pytest.raises(ValueError, match="broken"):
                await reader.task
            await other.task
            assert sum(other.num_tapped) + sum(map(num_tokens, other.read)) == 2

    run(main())
