"""What waits for a client: order, bounds, and the end."""

from __future__ import annotations

import asyncio

import pytest

from cadenza.service.rpc.outbox import Outbox


async def test_take_gives_all_that_waits_in_order():
    outbox = Outbox()
    outbox.put([b"a", b"bb"])
    outbox.put([b"c"])

    assert outbox.num_bytes == 4
    assert await outbox.take() == [b"a", b"bb", b"c"]
    outbox.put_one(b"dd")
    outbox.put_one(b"e")
    assert outbox.num_bytes == 3
    assert await outbox.take() == [b"dd", b"e"]
    assert outbox.num_bytes == 0
    assert outbox.num_bytes == 0


async def test_take_waits_for_an_event():
    outbox = Outbox()
    taking = asyncio.create_task(outbox.take())
    await asyncio.sleep(0)
    assert not taking.done()
    outbox.put([b"a"])

    assert await taking == [b"a"]


async def test_room_waits_for_a_take_and_counts_again():
    outbox = Outbox()
    outbox.put([b"abc"])
    waiters = [asyncio.create_task(outbox.room(3)) for _ in range(2)]
    waiters[0].add_done_callback(lambda _: outbox.put([b"abc"]))
    await asyncio.sleep(0)
    assert not any(waiter.done() for waiter in waiters)
    await outbox.take()
    async with asyncio.timeout(5):
        await asyncio.gather(*waiters)


@pytest.mark.parametrize("limit", [1, 100])
async def test_there_is_room_in_an_empty_outbox(limit):
    async with asyncio.timeout(5):
        await Outbox().room(limit)


async def test_a_closed_outbox_gives_out_what_is_left_then_nothing():
    outbox = Outbox()
    outbox.put([b"a"])
    outbox.close()

    assert await outbox.take() == [b"a"]
    assert await outbox.take() == []
    assert await outbox.take() == []
