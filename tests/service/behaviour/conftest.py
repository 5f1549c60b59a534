"""One front with a fake engine, served over HTTP and gRPC, and a client of each transport."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from cadenza.service.http import HttpServer, build_app
from cadenza.service.rpc import GrpcServer
from tests.grpc_input import Unsayable
from tests.transports import Told, Transport, connected

from ..conftest import Front
from ..http.conftest import check_documented


@dataclass
class Served:
    front: Front
    transports: list[Transport]
    http: str  # base URL
    grpc: str  # address

    def over(self, name: str) -> Transport:
        """The transport of this name."""
        [transport] = [each for each in self.transports if each.name == name]
        return transport

    async def ask(self, fields: Mapping[str, Any]) -> Told:
        """The answer, which is the same over each transport that can ask for it, as is the rest."""
        engine = self.front.engine
        told: dict[str, Told] = {}
        for each in self.transports:
            try:
                told[each.name] = await each.ask(fields)
            except Unsayable:
                assert each.name not in ("json", "sse")
        first = told["json"]
        for name, other in told.items():
            assert other == first, f"{name} differs from json for {fields}"
        await engine.until(self.front.is_clean)
        return first


OpenServed = Callable[..., AbstractAsyncContextManager[Served]]


@pytest.fixture
def serve(open_front: Any, hasty_uvicorn: None) -> OpenServed:
    """`async with serve(...) as served`; nothing may be left of any request at its end."""

    @asynccontextmanager
    async def served(**options: Any) -> AsyncIterator[Served]:
        async with open_front(**options) as front:
            listener = socket.create_server(("127.0.0.1", 0))
            server = HttpServer(build_app(front.generator, None), [listener], graceful_s=1)
            serving = asyncio.create_task(server.serve())
            rpc = GrpcServer(front.generator, port=0)
            address = f"127.0.0.1:{await rpc.start()}"
            base = f"http://127.0.0.1:{listener.getsockname()[1]}"
            hooks = {"response": [check_documented]}
            try:
                async with (
                    httpx.AsyncClient(base_url=base, timeout=20, event_hooks=hooks) as http,
                    connected(http, address) as transports,
                ):
                    yield Served(front, transports, base, address)
            finally:
                await rpc.stop(0)
                server.stop()
                await serving
                listener.close()
            assert front.is_clean()
            assert front.generator.is_idle

    return served
