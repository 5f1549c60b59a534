"""Clients of one protocol, in a process of their own, that cost little: they count bytes.

Started as `clients.py PROTOCOL PORT STREAMS CONNECTIONS TOKENS`. Prints a line once every stream
has begun, and one at the end with how many streams came whole and how many bytes they had. After
`completions`, PROMPT SEED may follow: then prompts have so many tokens, and no two begin alike.
"""

from __future__ import annotations

import asyncio
import json
import os
import selectors
import socket
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import uvloop

# Else gRPC tells of every process that is started where it has threads
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

import grpc

from cadenza.v1 import generation_pb2 as pb
from cadenza.v1 import generation_pb2_grpc as stubs

HTTP = {"chat": "chat/completions", "completions": "completions"}
PROTOCOLS = (*HTTP, "generate", "session")

_BEGUN = b"data: "  # in the first bytes of an answer that is a stream
_WHOLE = b"data: [DONE]\n\n\r\n0\r\n\r\n"
# Otherwise channels to one address share one connection
_ALONE = (("grpc.use_local_subchannel_pool", 1),)


def say(**what: int) -> None:
    print(json.dumps(what), flush=True)


# SSE


def read_sse(protocol: str, port: int, streams: int, tokens: int, *prompt: int) -> None:
    """Read all streams with one thread, and look at no more than their first and last bytes."""
    selector = selectors.DefaultSelector()
    opened = [_post(port, protocol, tokens, _ids(place, *prompt)) for place in range(streams)]
    for connection in opened:
        selector.register(connection, selectors.EVENT_READ)
    heads, tails = dict.fromkeys(opened, b""), dict.fromkeys(opened, b"")
    buffer, num_bytes, whole, unbegun = memoryview(bytearray(1 << 16)), 0, 0, set(opened)
    while tails:
        for key, _ in selector.select():
            connection: socket.socket = key.fileobj  # type: ignore[assignment]
            received = connection.recv_into(buffer)
            if connection in unbegun:
                heads[connection] += bytes(buffer[:received])
                if _BEGUN in heads[connection]:
                    unbegun.remove(connection)
                    if not unbegun:
                        say(begun=streams)
            elif not unbegun:
                num_bytes += received
            tail = tails[connection] + bytes(buffer[max(0, received - 32) : received])
            tails[connection] = tail[-32:]
            if not received or tail.endswith(_WHOLE):
                whole += tail.endswith(_WHOLE)
                selector.unregister(connection)
                connection.close()
                del tails[connection]
    say(whole=whole, num_bytes=num_bytes)


def _ids(stream: int, length: int = 0, seed: int = 0) -> list[int]:
    """A stream's prompt as ids of ordinary words."""
    return [500 + seed, 500 + stream, *range(500, 498 + length)] if length else []


def _post(port: int, protocol: str, tokens: int, ids: list[int]) -> socket.socket:
    prompts: dict[str, Any] = {
        "chat": {"messages": [{"role": "user", "content": "Once"}]},
        "completions": {"prompt": ids or "Once"},
    }
    options = {"max_tokens": tokens, "ignore_eos": True, "stream": True}
    body = json.dumps(prompts[protocol] | options).encode()
    head = f"POST /v1/{HTTP[protocol]} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    connection = socket.create_connection(("127.0.0.1", port))
    connection.sendall(head.encode() + body)
    return connection


# gRPC


class Count:
    """Messages and ends of all streams."""

    def __init__(self, streams: int) -> None:
        self.whole, self.num_bytes = 0, 0
        self._streams = streams
        self._begun: set[str] = set()

    def take(self, stream: str, message: pb.GenerateResponse | pb.SessionResponse) -> None:
        all_had_begun = len(self._begun) == self._streams
        for event in message.events:
            if event.HasField("tokens"):
                self._begun.add(event.request_id or stream)
            self.whole += event.HasField("finished")
        if all_had_begun:
            self.num_bytes += message.ByteSize()
        elif len(self._begun) == self._streams:
            say(begun=self._streams)


async def read_grpc(protocol: str, port: int, streams: int, connections: int, tokens: int) -> None:
    channels = [
        grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=_ALONE) for _ in range(connections)
    ]
    names = [str(number) for number in range(streams)]
    count = Count(streams)
    read = _generate if protocol == "generate" else _session
    async with asyncio.TaskGroup() as tasks:
        for index, channel in enumerate(channels):
            stub = stubs.GenerationServiceStub(channel)
            tasks.create_task(read(stub, names[index::connections], tokens, count))
    say(whole=count.whole, num_bytes=count.num_bytes)
    for channel in channels:
        await channel.close()


def _input(tokens: int) -> pb.GenerationInput:
    return pb.GenerationInput(text="Once", max_tokens=tokens, ignore_eos=True)


async def _generate(stub: Any, names: Sequence[str], tokens: int, count: Count) -> None:
    async def one(name: str) -> None:
        async for message in stub.Generate(pb.GenerateRequest(input=_input(tokens))):
            count.take(name, message)

    await asyncio.gather(*map(one, names))


async def _session(stub: Any, names: Sequence[str], tokens: int, count: Count) -> None:
    async def submits() -> AsyncIterator[pb.SessionRequest]:
        for name in names:
            yield pb.SessionRequest(submit=pb.Submit(request_id=name, input=_input(tokens)))

    async for message in stub.Session(submits()):
        count.take("", message)


# The floors' servers send what nobody has to understand


def read_floor(protocol: str, port: int, streams: int) -> None:
    """Read until the server ends."""
    if protocol == "http":
        _read_bare_http(port, streams)
    else:
        uvloop.run(_read_bare_grpc(port, streams))


def _read_bare_http(port: int, streams: int) -> None:
    selector = selectors.DefaultSelector()
    buffer = memoryview(bytearray(1 << 16))
    for _ in range(streams):
        connection = socket.create_connection(("127.0.0.1", port))
        connection.sendall(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        selector.register(connection, selectors.EVENT_READ)
    while selector.get_map():
        for key, _ in selector.select():
            connection = key.fileobj  # type: ignore[assignment]
            if not connection.recv_into(buffer):
                selector.unregister(connection)
                connection.close()


async def _read_bare_grpc(port: int, streams: int) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:

        async def one() -> None:
            async for _ in channel.unary_stream("/floor/stream")(b""):
                pass

        await asyncio.gather(*[one() for _ in range(streams)])


def main() -> None:
    # As if on another machine: what arrives here never takes the core from who sends it
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    protocol, *rest = sys.argv[1:]
    numbers = [int(number) for number in rest]
    if protocol.startswith("bare-"):
        read_floor(protocol.removeprefix("bare-"), *numbers)
        return
    port, streams, connections, tokens, *prompt = numbers
    run: Callable[[], None] = (
        (lambda: read_sse(protocol, port, streams, tokens, *prompt))
        if protocol in HTTP
        else (lambda: uvloop.run(read_grpc(protocol, port, streams, connections, tokens)))
    )
    run()


if __name__ == "__main__":
    main()
