"""Clients that arrive whether or not others have been served, in a process of their own.

Started as `arrivals.py PORT RATE SECONDS SEED`; RATE 0: so many at a time that the service is never
idle. Connections are kept and used again. Beside them somebody asks for /health on a connection of
its own. Prints one line with what became of all, as JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import sys
import time
from dataclasses import dataclass, field
from typing import NamedTuple

import uvloop

TOKENS = 16
CLOSED = 32  # at a time where no rate is given
HEALTH_EVERY_S = 0.05
_PRIORITY = -10  # so that the time until an answer is read is not the client's own

_BODY = json.dumps(
    {
        "prompt": "The old violin lay in the window",
        "max_tokens": TOKENS,
        "ignore_eos": True,
        "stream": True,
    }
).encode()
_REQUEST = (
    b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(_BODY) + _BODY
)
_HEALTH = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"


class Connection(NamedTuple):
    """One that is open."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


@dataclass(slots=True)
class Seen:
    """What became of requests; times in milliseconds."""

    served_ms: list[float] = field(default_factory=list)  # until the first token of a whole stream
    refused_ms: list[float] = field(default_factory=list)
    health_ms: list[float] = field(default_factory=list)
    cut: int = 0  # streams that began and did not end whole
    other: dict[int, int] = field(default_factory=dict)  # statuses besides 200 and 503
    seconds: float = 0.0  # from the first arrival to the last end


class Arrivals:
    """Everything that clients do."""

    def __init__(self, port: int, chance: random.Random) -> None:
        self.seen = Seen()
        self._port = port
        self._chance = chance
        self._idle: list[Connection] = []

    async def run(self, rate: float, seconds: float) -> None:
        began_s = time.perf_counter()
        health = asyncio.ensure_future(self._ask_for_health())
        async with asyncio.TaskGroup() as requests:
            if not rate:
                for _ in range(CLOSED):
                    requests.create_task(self._one_after_another(began_s + seconds))
            due_s = began_s
            while rate and due_s < began_s + seconds:
                await asyncio.sleep(due_s - time.perf_counter())
                requests.create_task(self._request())
                due_s += self._chance.expovariate(rate)
        self.seen.seconds = time.perf_counter() - began_s
        health.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await health

    async def _one_after_another(self, until_s: float) -> None:
        while time.perf_counter() < until_s:
            await self._request()

    async def _request(self) -> None:
        began_s = time.perf_counter()
        connection = self._open() or await self._connect()
        connection.writer.write(_REQUEST)
        head = await connection.reader.readuntil(b"\r\n\r\n")
        status = int(head.split(b" ", 2)[1])
        if status == 200:
            try:
                await connection.reader.readuntil(b"data: ")
                first_ms = _ms_since(began_s)
                rest = await connection.reader.readuntil(b"\r\n0\r\n\r\n")
            except (asyncio.IncompleteReadError, ConnectionError):
                self.seen.cut += 1
                return
            if b"data: [DONE]" in rest:
                self.seen.served_ms.append(first_ms)
            else:
                self.seen.cut += 1
        else:
            if status == 503:
                self.seen.refused_ms.append(_ms_since(began_s))
            else:
                self.seen.other[status] = self.seen.other.get(status, 0) + 1
            await connection.reader.readexactly(_content_length(head))
        self._idle.append(connection)

    async def _ask_for_health(self) -> None:
        connection = await self._connect()
        while True:
            await asyncio.sleep(HEALTH_EVERY_S)
            began_s = time.perf_counter()
            connection.writer.write(_HEALTH)
            head = await connection.reader.readuntil(b"\r\n\r\n")
            assert b" 200 " in head
            self.seen.health_ms.append(_ms_since(began_s))
            await connection.reader.readexactly(_content_length(head))

    def _open(self) -> Connection | None:
        """One to be used again; the service closes those that have been idle for long."""
        while self._idle:
            connection = self._idle.pop()
            if not connection.reader.at_eof():
                return connection
        return None

    async def _connect(self) -> Connection:
        return Connection(*await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 20))


def _ms_since(began_s: float) -> float:
    return 1000 * (time.perf_counter() - began_s)


def _content_length(head: bytes) -> int:
    return int(head.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0])


def main() -> None:
    port, rate, seconds, seed = sys.argv[1:]
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, _PRIORITY)
    arrivals = Arrivals(int(port), random.Random(int(seed)))
    uvloop.run(arrivals.run(float(rate), float(seconds)))
    seen = arrivals.seen
    print(json.dumps({name: getattr(seen, name) for name in seen.__slots__}))


if __name__ == "__main__":
    main()
