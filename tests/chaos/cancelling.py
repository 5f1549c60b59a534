"""Clients that leave, in a process of their own: `cancelling.py HTTP GRPC COUNT SEED`.

Each asks in one of several ways and goes away after some events or some milliseconds, or at once.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import socket
import struct
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress

import uvloop

# Else gRPC tells of every process that is started where it has threads
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

import grpc.aio

from cadenza.v1 import generation_pb2 as pb
from cadenza.v1 import generation_pb2_grpc as stubs

AT_ONCE = 64
MAX_TOKENS = 400
MOST_EVENTS = 6
MOST_S, LONG_S = 0.2, 3.0
PROMPTS = ("Once", "the river and the night " * 30)
_RESET = struct.pack("ii", 1, 0)  # closing sends a reset

Leave = Callable[[], Awaitable[None]]


class Clients:
    """One after another, AT_ONCE at a time."""

    def __init__(self, http_port: int, grpc_address: str, chance: random.Random) -> None:
        self._http_port = http_port
        self._chance = chance
        self._channel = grpc.aio.insecure_channel(grpc_address)
        self._stub = stubs.GenerationServiceStub(self._channel)

    async def run(self, count: int) -> None:
        left = iter(range(count))

        async def one_after_another() -> None:
            ways: list[Leave] = [self._stream, self._stream, self._whole]
            ways += [self._generate, self._session]
            for _ in left:
                await self._chance.choice(ways)()

        await asyncio.gather(*(one_after_another() for _ in range(AT_ONCE)))
        await self._channel.close()

    async def _stream(self) -> None:
        """Leaves a stream after some events, by an end or by a reset."""
        reader, writer = await self._asked(stream=True)
        try:
            # What was sent only in part is dropped by the service in the end
            with suppress(asyncio.TimeoutError, asyncio.IncompleteReadError, ConnectionError):
                async with asyncio.timeout(self._patience_s()):
                    for _ in range(self._chance.randint(0, MOST_EVENTS)):
                        await reader.readuntil(b"\n\n")
        finally:
            self._leave(writer)

    async def _whole(self) -> None:
        """Leaves while it waits for an answer that is no stream."""
        _, writer = await self._asked(stream=False)
        await asyncio.sleep(self._chance.uniform(0, MOST_S))
        self._leave(writer)

    async def _asked(self, *, stream: bool) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._http_port)
        body = {
            "prompt": self._chance.choice(PROMPTS),
            "max_tokens": MAX_TOKENS,
            "n": self._chance.choice((1, 1, 2)),
            "ignore_eos": True,
            "stream": stream,
        }
        data = json.dumps(body).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(data)}\r\n\r\n"
        sent = head.encode() + data
        cut = len(sent) if self._chance.random() < 0.9 else self._chance.randrange(len(sent))
        writer.write(sent[:cut])
        await writer.drain()
        return reader, writer

    def _leave(self, writer: asyncio.StreamWriter) -> None:
        if self._chance.random() < 0.5:
            sock = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        writer.close()

    async def _generate(self) -> None:
        call = self._stub.Generate(pb.GenerateRequest(input=self._input()))
        await self._hear(call)
        call.cancel()

    async def _session(self) -> None:
        """Cancels by a message, or leaves the session with its request running."""
        call = self._stub.Session()
        submit = pb.Submit(request_id="q", input=self._input())
        await call.write(pb.SessionRequest(submit=submit))
        await self._hear(call)
        if self._chance.random() < 0.5:
            with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                await call.write(pb.SessionRequest(cancel=pb.Cancel(request_id="q")))
                await call.done_writing()
                async for _ in call:
                    pass
        call.cancel()

    async def _hear(self, call: AsyncIterator[object]) -> None:
        with suppress(asyncio.TimeoutError, grpc.aio.AioRpcError, StopAsyncIteration):
            async with asyncio.timeout(self._patience_s()):
                for _ in range(self._chance.randint(0, MOST_EVENTS)):
                    await anext(aiter(call))

    def _input(self) -> pb.GenerationInput:
        text = self._chance.choice(PROMPTS)
        return pb.GenerationInput(text=text, max_tokens=MAX_TOKENS, ignore_eos=True)

    def _patience_s(self) -> float:
        return self._chance.choice((MOST_S, LONG_S))


async def main(http_port: str, grpc_address: str, count: str, seed: str) -> None:
    await Clients(int(http_port), grpc_address, random.Random(int(seed))).run(int(count))


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
