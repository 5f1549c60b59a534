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
    assert outbox.offer(b"dd", 1)
    assert outbox.offer(b"e", 3)
    assert outbox.num_bytes == 3
    assert await outbox.take() == [b"dd", b"e"]
    assert outbox.num_bytes == 0


@pytest.mark.parametrize(
    "put", [lambda outbox: outbox.put([b"a"]), lambda outbox: outbox.offer(b"a", 1)]
)
async def test_take_waits_for_an_event(put):
    outbox = Outbox()
    taking = asyncio.create_task(outbox.take())
    await asyncio.sleep(0)
    assert not taking.done()
    put(outbox)

    assert await taking == [b"a"]


async def test_what_is_offered_is_left_where_there_is_no_room():
    outbox = Outbox()
    assert outbox.offer(b"abc", 3)
    assert not outbox.offer(b"d", 3)
    assert outbox.offer(b"d", 4)

    assert await outbox.take() == [b"abc", b"d"]


async def test_all_is_written_and_what_waits_is_one_message():
    outbox = Outbox()
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
