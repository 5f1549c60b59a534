"""Clients that do not read: what they cost is bounded, and nothing of their answers is lost."""

from __future__ import annotations

import asyncio
import json
import socket

from cadenza.service.http.connection import ConnectionLimits
from cadenza.wire.messages import Stall

from .conftest import Served, request_bytes

LONG = 6000  # tokens, of which a chunk has about 180 bytes
BOUND = 128 << 10
BODY = {"prompt": "x", "stream": True, "max_tokens": LONG, "ignore_eos": True}


async def unread(served: Served, body: dict[str, object]) -> socket.socket:
    """A connection that has sent a request, and takes next to nothing of the answer."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(sock, ("127.0.0.1", served.port))
    await loop.sock_sendall(sock, request_bytes("/v1/completions", body))
    return sock


def stalls(served: Served) -> list[bool]:
    engine = served.front.engine
    return [each.is_stalled for each in engine.received if isinstance(each, Stall)]


async def rest(sock: socket.socket) -> str:
    """The text of the whole answer, read to its end."""
    data = b""
    while not data.endswith(b"0\r\n\r\n"):
        data += await asyncio.get_running_loop().sock_recv(sock, 1 << 20)
    lines = data.decode().splitlines()
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    return "".join(choice["text"] for chunk in chunks for choice in chunk["choices"])


def test_nothing_is_generated_for_who_does_not_read_and_all_of_it_for_who_goes_on(run, serve):
    async def main():
        async with serve(max_model_len=LONG + 100, recovers=True) as served:
            front = served.front
            front.says("abcdefgh" * (LONG // 8))
            with await unread(served, BODY) as sock:
                await front.engine.until(lambda: stalls(served) == [True])
                await front.told()
                at_rest = front.engine.generated
                assert at_rest * 150 < BOUND
                other = await served.http.post("/v1/completions", json={"prompt": "y"})
                assert other.status_code == 200
                assert front.engine.generated > at_rest

                front.engine.die()
                await front.recover()
                await front.engine.until(lambda: stalls(served) == [True])
                await front.told()
                assert front.engine.generated <= 1

                assert await rest(sock) == "abcdefgh" * (LONG // 8)
            assert stalls(served)[-1] is False or len(stalls(served)) == 1

    run(main())


def test_who_never_reads_is_cut_off_and_leaves_nothing_behind(run, serve):
    async def main():
        limits = ConnectionLimits(send_s=0.05)
        async with serve(max_model_len=LONG + 100, connections=limits) as served:
            front = served.front
            front.says("abcdefgh" * (LONG // 8))
            with await unread(served, BODY | {"n": 2}):
                await front.engine.until(lambda: len(front.engine.cancels()) == 2)
                await front.told()
                assert front.is_clean()

    run(main())
