"""A front that is served, where the package with vLLM's messages is installed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from cadenza.service.rpc import GrpcServer

if TYPE_CHECKING:
    from tests.service.rpc.vllm.asking import Served

ServeVllm = Callable[..., AbstractAsyncContextManager["Served"]]


@pytest.fixture
def serve_vllm(open_front) -> ServeVllm:
    """`async with serve_vllm() as served`: nothing may be left of any request at the end."""

    from smg_grpc_proto.generated.vllm_engine_pb2_grpc import VllmEngineStub

    from tests.service.rpc.vllm.asking import Served

    @asynccontextmanager
    async def serve(admin: Any = None, **settings: Any) -> AsyncIterator[Served]:
        async with open_front(**settings) as front:
            server = GrpcServer(front.generator, admin and admin(front), port=0)
            port = await server.start()
            try:
                async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                    yield Served(front, server, port, channel, VllmEngineStub(channel))
            finally:
                await server.stop(0)
            assert front.is_clean()

    return serve
