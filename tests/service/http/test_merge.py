"""Several generations read as one: nothing that came before a failure is lost."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pytest

from cadenza.service.errors import GenerationFailed
from cadenza.service.http.merge import merge
from cadenza.service.turns import Turns

NUM = 24  # more than are woken in one turn


class Told:
    """A generation that tells one batch, or fails; its reader is woken as that of a real one."""

    def __init__(self, turns: Turns, *batch: int, error: Exception | None = None) -> None:
        self._turns, self._batch, self._error = turns, list(batch), error
        self._waiter: asyncio.Future[None] | None = None
        self._has_come = False

    def come(self) -> None:
        self._has_come = True
        if self._waiter is not None:
            self._turns.wake(self._waiter)

    def take(self) -> list[int]:
        if not self._has_come:
            return []
        batch, self._batch = self._batch, []
        return batch

    def __aiter__(self) -> Told:
        return self

    async def __anext__(self) -> list[int]:
        if not self._has_come:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if batch := self.take():
            return batch
        if self._error is not None:
            raise self._error
        raise StopAsyncIteration


async def read(generations: list[Any], order: list[int], seen: list[tuple[int, Any]]) -> None:
    """Read what they tell, who all have it at the same time, and wake their readers in `order`."""

    def come() -> None:
        for index in order:
            generations[index].come()

    asyncio.get_running_loop().call_soon(asyncio.get_running_loop().call_soon, come)
    async with aclosing(merge(generations)) as batches:
        async for index, batch in batches:
            seen.append((index, batch))


@pytest.mark.parametrize("step", [1, -1])
@pytest.mark.parametrize("failing", [0, 3, 11, NUM - 1])
def test_all_that_has_come_is_told_before_a_failure(run, failing: int, step: int) -> None:
    async def main() -> None:
        turns, error = Turns(), GenerationFailed("it broke", retryable=False)
        generations = [Told(turns, index) for index in range(NUM)]
        generations[failing] = Told(turns, error=error)
        seen: list[tuple[int, Any]] = []

        with pytest.raises(GenerationFailed, match="it broke"):
            await read(generations, list(range(NUM))[::step], seen)

        expected = [(index, [index]) for index in range(NUM) if index != failing]
        assert sorted(seen) == expected

    run(main())


def test_what_a_failed_one_told_before_is_told_once(run) -> None:
    async def main() -> None:
        turns, error = Turns(), GenerationFailed("it broke", retryable=False)
        generations = [Told(turns, index, error=error) for index in range(NUM)]
        seen: list[tuple[int, Any]] = []

        with pytest.raises(GenerationFailed, match="it broke"):
            await read(generations, list(range(NUM)), seen)

        assert sorted(seen) == [(index, [index]) for index in range(NUM)]

    run(main())


def test_batches_that_are_read_in_one_turn_are_in_the_order_of_their_generations(run) -> None:
    async def main() -> None:
        turns = Turns()
        seen: list[tuple[int, Any]] = []
        await read([Told(turns, index) for index in range(4)], [2, 0, 3, 1], seen)

        assert seen == [(index, [index]) for index in range(4)]

    run(main())
