"""The HTTP API on a real loopback socket, in front of a fake engine."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import openai
import pytest

from cadenza.service.admin import Admin, AdminAccess
from cadenza.service.http import HttpServer, build_app
from cadenza.service.http.connection import ConnectionLimits
from cadenza.service.http.openapi import document
from cadenza.service.limits import Limits

from ..conftest import Front
from ..waiting import until
from .schemas import Document


@dataclass
class Served:
    front: Front
    app: Any
    server: HttpServer
    http: httpx.AsyncClient
    port: int

    @property
    def openai(self) -> openai.AsyncOpenAI:
        base = f"http://127.0.0.1:{self.port}/v1"
        return openai.AsyncOpenAI(base_url=base, api_key="none", max_retries=0)

    async def events(self, path: str, body: dict[str, Any]) -> list[Any]:
        """Every event of a stream, as JSON or as "[DONE]"."""
        response = await self.http.post(path, json={**body, "stream": True})
        assert response.status_code == 200, response.text
        assert response.text.endswith("\n\n")
        blocks = response.text.removesuffix("\n\n").split("\n\n")
        data = [block.removeprefix("data: ") for block in blocks]
        return [part if part == "[DONE]" else json.loads(part) for part in data]

    async def raw(self, path: str, body: dict[str, Any]) -> tuple[Any, asyncio.StreamWriter]:
        """A connection that has sent a request, for leaving rudely."""
        return await self.raw_bytes(request_bytes(path, body))

    async def raw_bytes(self, data: bytes) -> tuple[Any, asyncio.StreamWriter]:
        """A connection that has sent these bytes."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(data)
        await writer.drain()
        return reader, writer

    async def silent(self, data: bytes) -> socket.socket:
        """A connection that has sent these bytes and never reads. The caller closes it."""
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(client, ("127.0.0.1", self.port))
        await loop.sock_sendall(client, data)
        return client

    async def until_connections(self, count: int) -> None:
        """Wait until the server has just so many."""
        await until(lambda: self.server.num_connections == count)


_DOCUMENT = Document(document("1", Limits(), with_admin=True))


async def check_documented(response: httpx.Response) -> None:
    """Every answer of every test is what the OpenAPI document says."""
    method, path = response.request.method, response.request.url.path
    status = str(response.status_code)
    operation = _DOCUMENT.operation(method, path)
    if operation is None:
        assert status in ("200", "400", "404", "405"), f"{method} {path} {status}"
        return
    pattern, told = operation
    assert status in told["responses"] or status == "500", (
        f"{method} {pattern} is not documented to answer {status}: {response.url}"
    )
    content = told["responses"].get(status, {}).get("content", {})
    kind = response.headers.get("content-type", "").partition(";")[0]
    if status != "500":
        assert kind in content or not content, f"{method} {pattern} answers {kind}"
    if kind == "application/json" and content:
        faults = _DOCUMENT.faults(json.loads(await response.aread()), content[kind]["schema"])
        assert not faults, f"{method} {pattern} {status}: {faults}; see service/http/answered.py"


def request_bytes(path: str, body: dict[str, Any]) -> bytes:
    payload = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(payload)}\r\n\r\n"
    return head.encode() + payload


OpenServed = Callable[..., AbstractAsyncContextManager[Served]]


@pytest.fixture
def serve(open_front, hasty_uvicorn: None) -> OpenServed:
    @asynccontextmanager
    async def served(
        *,
        connections: ConnectionLimits | None = None,
        admin_key: str | None = None,
        is_local: bool = True,
        metrics_as_vllm: bool = True,
        with_admin: bool = True,
        **options: Any,
    ) -> AsyncIterator[Served]:
        async with open_front(**options) as front:
            listener = socket.create_server(("127.0.0.1", 0))
            # connections inherit it: little is sent that a client does not read
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 << 10)
            admin = Admin(front.control, AdminAccess(admin_key, is_local=is_local))
            app = build_app(
                front.generator,
                admin if with_admin else None,
                metrics_as_vllm=metrics_as_vllm,
                num_connections=lambda: {"http": server.num_connections, "grpc": 7},
            )
            server = HttpServer(app, [listener], graceful_s=1, limits=connections)
            serving = asyncio.create_task(server.serve())
            port = listener.getsockname()[1]
            async with httpx.AsyncClient(
                base_url=f"http://127.0.0.1:{port}",
                timeout=10,
                event_hooks={"response": [check_documented]},
            ) as http:
                try:
                    yield Served(front, app, server, http, port)
                finally:
                    server.stop()
                    await serving
                    listener.close()

    return served
