"""What becomes of the front where it cannot serve."""

from __future__ import annotations

import socket

import httpx
import pytest

from cadenza.service.engine_client import EngineClient
from cadenza.service.errors import EngineUnavailable
from cadenza.service.front import Front
from cadenza.service.front_config import FrontConfig
from cadenza.service.rpc.server import GrpcServer
from cadenza.service.servers import Servers
from cadenza.wire.messages import EngineConfig

from .byte_tokenizer import make_tokenizer


class DeadProcess:
    """An engine process that has gone before it was told anything."""

    hook_under_way = None

    def __init__(self) -> None:
        self.connection, theirs = socket.socketpair()
        theirs.close()

    async def stop(self, grace_s: float) -> int:
        return -9

    def end(self) -> None:
        pass


def front() -> Front:
    config = FrontConfig(
        host="127.0.0.1", port=0, grpc_port=0, model_names=("m",), engine=EngineConfig(model="m")
    )
    return Front(
        config,
        make_tokenizer(),
        DeadProcess(),
        on_progress=lambda _: None,
        on_ready=lambda *_: pytest.fail("there is no engine"),
    )


def test_an_engine_that_is_gone_before_it_starts_is_told_and_nobody_is_let_in(run, monkeypatch):
    urls: list[str] = []
    opened = Servers.open

    async def remembered(servers):
        addresses = await opened(servers)
        urls.append(f"http://127.0.0.1:{addresses.http_port}/health")
        monkeypatch.setattr(EngineClient, "start", gone)
        return addresses

    def gone(*_):
        raise EngineUnavailable("It is gone.")

    async def start(_):
        return 1

    monkeypatch.setattr(GrpcServer, "start", start)
    monkeypatch.setattr(Servers, "open", remembered)
    assert run(front().run()) == "It is gone."
    with pytest.raises(httpx.ConnectError):
        httpx.get(urls[0])
