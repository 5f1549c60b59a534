"""What a connection says of itself to the answer that it carries."""

from __future__ import annotations

import asyncio
from functools import partial

import uvicorn
from uvicorn.server import ServerState

from cadenza.service.http.connection import ConnectionLimits
from cadenza.service.http.protocol import UNSENT_BYTES, BoundedProtocol


class Transport(asyncio.Transport):
    def write(self, data: bytes) -> None:
        pass

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high == UNSENT_BYTES

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        pass


async def answer(scope, receive, send) -> None:
    """An answer without an end."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"x", "more_body": True})
    await receive()


def connected() -> BoundedProtocol:
    config = uvicorn.Config(answer, http="httptools", ws="none", lifespan="off", log_config=None)
    config.load()
    loop = asyncio.get_running_loop()
    protocol = BoundedProtocol(config, ServerState(), {}, loop, limits=ConnectionLimits())
    protocol.connection_made(Transport())
    return protocol


def test_whoever_watches_is_told_when_the_client_ceases_to_take_more_and_when_it_goes_on(run):
    async def main():
        protocol = connected()
        told: list[bool] = []
        protocol.watch_flow(told.append)
        protocol.pause_writing()
        protocol.resume_writing()
        assert told == [True, False]
        protocol.watch_flow(None)
        protocol.pause_writing()
        assert told == [True, False]
        protocol.watch_flow(told.append)
        assert told == [True, False, True]

    run(main())


def test_more_is_taken_while_an_answer_is_under_way_and_the_client_keeps_up(run):
    async def main():
        protocol = connected()
        assert not protocol.takes_more()
        protocol.data_received(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        assert not protocol.takes_more()
        await asyncio.sleep(0)
        assert protocol.takes_more()
        protocol.pause_writing()
        assert not protocol.takes_more()
        protocol.resume_writing()
        assert protocol.takes_more()
        protocol.connection_lost(None)
        assert not protocol.takes_more()

    run(main())


def test_whoever_watches_is_told_once_that_the_connection_is_lost(run):
    async def main():
        protocol = connected()
        told: list[str] = []
        left = partial(told.append, "left")
        protocol.watch_loss(partial(told.append, "lost"))
        protocol.watch_loss(left)
        protocol.unwatch_loss(left)
        assert not protocol.is_lost
        protocol.connection_lost(None)
        assert protocol.is_lost
        assert told == ["lost"]
        protocol.abort_later()
        assert protocol._end is None, "nothing is left to be aborted"

    run(main())
