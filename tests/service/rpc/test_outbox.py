"""What waits for a client: order, bounds, and the end."""

from __future__ import annotations

import asyncio

import pytest

from cadenza.service.rpc.outbox import Outbox


async def test_take_gives_all_that_waits_in_order():
    outbox = Outbox(3)
    outbox.put([b"a", b"bb"])
    outbox.put([b"c"])

    assert outbox.num_bytes == 4
    assert await outbox.take() == [b"a", b"bb", b"c"]
    assert outbox.num_bytes == 0


async def test_take_waits_for_an_event():
    outbox = Outbox(3)
    taking = asyncio.create_task(outbox.take())
    await asyncio.sleep(0)
    assert not taking.done()
    outbox.put([b"a"])

    assert await taking == [b"a"]


async def test_there_is_room_until_the_limit_is_reached():
    outbox = Outbox(3)
    outbox.put([b"ab"])
    assert outbox.has_room
    outbox.put([b"c"])
    assert not outbox.has_room

    assert await outbox.take() == [b"ab", b"c"]
    assert outbox.has_room


async def test_all_is_written_and_what_waits_is_one_message():
    outbox = Outbox(3)
    written = []

    async def write(message):
        written.append(message)
        if len(written) == 1:
            outbox.put([b"c", b"d"])
            outbox.close()

    outbox.put([b"a", b"b"])
    await outbox.write_to(write)

    assert written == [b"ab", b"cd"]


async def test_room_waits_for_a_take_and_counts_again():
    outbox = Outbox(3)
    outbox.put([b"abc"])
    waiters = [asyncio.create_task(outbox.room()) for _ in range(2)]
    waiters[0].add_done_callback(lambda _: outbox.put([b"abc"]))
    await asyncio.sleep(0)
    assert not any(waiter.done() for waiter in waiters)
    await outbox.take()
    async with asyncio.timeout(5):
        await asyncio.gather(*waiters)


@pytest.mark.parametrize("limit", [1, 100, None])
async def test_there_is_room_in_an_empty_outbox(limit):
    async with asyncio.timeout(5):
        await Outbox(3).room(limit)


async def test_another_limit_has_room_of_its_own():
    outbox = Outbox(3)
    outbox.put([b"abc"])
    async with asyncio.timeout(5):
        await outbox.room(4)
    waiting = asyncio.create_task(outbox.room(2))
    await asyncio.sleep(0)

    assert not waiting.done()
    await outbox.take()
    await waiting


async def test_a_closed_outbox_gives_out_what_is_left_then_nothing():
    outbox = Outbox(3)
    outbox.put([b"a"])
    outbox.close()

    assert await outbox.take() == [b"a"]
    assert await outbox.take() == []
    assert await outbox.take() == []
