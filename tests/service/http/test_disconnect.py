"""Work that ends when its client leaves."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from cadenza.service.http.disconnect import while_connected
from cadenza.service.http.errors import ClientGone
from tests.service.waiting import until


class FakeConnection:
    def __init__(self, *, is_lost=False):
        self.is_lost = is_lost
        self.watching = set()

    def watch_loss(self, callback):
        self.watching.add(callback)

    def unwatch_loss(self, callback):
        self.watching.discard(callback)

    def lose(self):
        for callback in [*self.watching]:
            callback()


class Work:
    """Waits, and says how that ended."""

    def __init__(self):
        self.state = "new"
        self.may_end = asyncio.Event()

    async def run(self):
        self.state = "begun"
        try:
            await self.may_end.wait()
            self.state = "done"
        except asyncio.CancelledError:
            self.state = "cancelled"
            raise


async def begun(connection, work):
    task = asyncio.create_task(while_connected(connection, work.run()))
    await until(lambda: work.state == "begun")
    return task


def test_what_needs_no_waiting_is_over_in_one_turn(run):
    async def main():
        turns = []

        async def at_once():
            turns.append("done")

        asyncio.get_running_loop().call_soon(turns.append, "next turn")
        connection = FakeConnection()
        await while_connected(connection, at_once())
        assert turns == ["done"]
        assert not connection.watching

    run(main())


def test_what_is_raised_comes_through_and_nobody_watches_any_more(run):
    async def main():
        async def failing():
            raise LookupError("no")

        connection = FakeConnection()
        with pytest.raises(LookupError, match="no"):
            await while_connected(connection, failing())
        assert not connection.watching

    run(main())


def test_who_leaves_ends_the_work_and_the_task_may_wait_again(run):
    async def main():
        connection, work = FakeConnection(), Work()

        async def caller():
            with pytest.raises(ClientGone):
                await while_connected(connection, work.run())
            await asyncio.sleep(0)  # would raise if the cancellation still stood
            return asyncio.current_task().cancelling()

        task = asyncio.create_task(caller())
        await until(lambda: work.state == "begun")
        connection.lose()
        assert await task == 0
        assert work.state == "cancelled"
        assert not connection.watching

    run(main())


@pytest.mark.parametrize("leaves", [False, True], ids=["and stays", "and leaves"])
def test_a_task_that_others_cancel_stays_cancelled(run, leaves):
    async def main():
        connection, work = FakeConnection(), Work()
        task = await begun(connection, work)
        task.cancel()
        if leaves:
            connection.lose()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert work.state == "cancelled"

    run(main())


def test_work_that_ends_as_its_client_leaves_has_ended(run):
    async def main():
        connection, work = FakeConnection(), Work()

        async def stubborn():
            try:
                await work.run()
            except asyncio.CancelledError:
                work.state = "put in order"

        task = asyncio.create_task(while_connected(connection, stubborn()))
        await until(lambda: work.state == "begun")
        connection.lose()
        await task
        assert work.state == "put in order"
        assert not task.cancelling()

    run(main())


def test_an_earlier_cancellation_that_somebody_kept_is_not_taken_for_another(run):
    async def main():
        connection, work = FakeConnection(), Work()

        async def caller():
            with pytest.raises(ClientGone):
                await while_connected(connection, work.run())
            return asyncio.current_task().cancelling()

        async def kept():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            return await caller()

        task = asyncio.create_task(kept())
        await asyncio.sleep(0)
        task.cancel()
        await until(lambda: work.state == "begun")
        connection.lose()
        assert await task == 1

    run(main())


def test_nothing_is_begun_for_who_has_left(run):
    async def main():
        work = Work()
        with pytest.raises(ClientGone):
            await while_connected(FakeConnection(is_lost=True), work.run())
        assert work.state == "new"

    run(main())


def test_who_leaves_after_a_large_body_is_missed(run, serve):
    """For which reading had paused, and a connection that nobody reads from is never lost."""

    async def main():
        async with serve() as served:
            served.front.engine.seats = 0
            body = {"prompt": [1] * 50, "max_tokens": 5, "user": "x" * 300_000}
            _, writer = await served.raw("/v1/completions", body)
            await writer.drain()
            await until(lambda: served.front.generator.num_in_flight == 1)
            writer.close()
            await served.front.engine.until(served.front.is_clean)

    run(main())
