"""Readers are woken a few in a turn of the loop, in order, and each of them once."""

from __future__ import annotations

import asyncio

from cadenza.service.turns import Turns


class Readers:
    def __init__(self, turns: Turns, count: int) -> None:
        self.went_on: list[int] = []
        self.turns = turns
        self.waiters = [asyncio.get_running_loop().create_future() for _ in range(count)]
        self.tasks = [asyncio.create_task(self._read(number)) for number in range(count)]

    async def _read(self, number: int) -> None:
        await self.waiters[number]
        self.went_on.append(number)

    def wake_all(self) -> None:
        for waiter in self.waiters:
            self.turns.wake(waiter)


def test_a_few_go_on_in_a_turn_and_all_in_order(run):
    async def main():
        readers = Readers(Turns(), 11)
        await asyncio.sleep(0)

        readers.wake_all()

        counts = []
        while len(readers.went_on) < 11:
            await asyncio.sleep(0)
            counts.append(len(readers.went_on))
        assert readers.went_on == [*range(11)]
        assert max(after - before for before, after in zip([0, *counts], counts, strict=False)) == 4

    run(main())


def test_what_comes_meanwhile_waits_for_a_few(run):
    async def main():
        readers = Readers(Turns(), 40)
        await asyncio.sleep(0)

        readers.wake_all()
        seen: list[int] = []
        asyncio.get_running_loop().call_soon(lambda: seen.append(len(readers.went_on)))
        await asyncio.gather(*readers.tasks)

        assert seen[0] <= 4

    run(main())


def test_who_is_alone_goes_on_at_once(run):
    async def main():
        turns = Turns()
        for _ in range(3):
            readers = Readers(turns, 1)
            await asyncio.sleep(0)
            readers.wake_all()
            assert readers.waiters[0].done()
            await asyncio.gather(*readers.tasks)
            await asyncio.sleep(0)

    run(main())


def test_who_has_left_costs_nobody_a_place(run):
    async def main():
        readers = Readers(Turns(), 12)
        await asyncio.sleep(0)
        readers.wake_all()
        for task in readers.tasks[4:8]:
            task.cancel()

        await asyncio.gather(*readers.tasks, return_exceptions=True)

        assert readers.went_on == [0, 1, 2, 3, 8, 9, 10, 11]

    run(main())
