"""The clients that the examples and the guide show, against a real server."""

from __future__ import annotations

import asyncio
import importlib.util
import re
import runpy
import sys
import time
from collections.abc import Iterator
from contextlib import asynccontextmanager
from itertools import islice
from pathlib import Path
from types import ModuleType

import grpc
import pytest

from cadenza.service.rpc import GrpcServer
from cadenza.v1 import generation_pb2 as pb
from cadenza.v1 import generation_pb2_grpc

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def example() -> Iterator[ModuleType]:
    """`examples/session_client.py`."""
    spec = importlib.util.spec_from_file_location(
        "session_client", ROOT / "examples/session_client.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["session_client"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["session_client"]


@pytest.fixture
def serve_address(open_front):
    """`async with serve_address() as (front, address)`."""

    @asynccontextmanager
    async def served():
        async with open_front() as front:
            server = GrpcServer(front.generator, port=0)
            port = await server.start()
            try:
                yield front, f"127.0.0.1:{port}"
            finally:
                await server.stop(0)

    return served


async def test_the_client_submits_appends_and_tells_typed_events(serve_address, example):
    async with serve_address() as (front, address):
        front.says("abc")
        async with (
            grpc.aio.insecure_channel(address) as channel,
            example.SessionClient(channel) as session,
        ):
            first = await session.submit(pb.GenerationInput(text="hello", max_tokens=2))
            events = [event async for event in first]
            assert events[0] == example.Accepted(prompt_tokens=3, queue_position=0)
            texts = [event for event in events if isinstance(event, example.Text)]
            assert "".join(part.text for part in texts) == "ab"
            assert events[-1] == example.Finished(3, 3, 2)

            second = await session.append(first, pb.GenerationInput(text="x", max_tokens=1))
            assert await second.text() == "a"
            with pytest.raises(example.RequestFailed, match="must be between") as failed:
                await (await session.submit(pb.GenerationInput(text="x", n=-1))).text()
            assert failed.value.code == 3


async def test_the_client_cancels_and_grants(serve_address, example):
    async with serve_address() as (front, address):
        front.engine.auto = False
        async with (
            grpc.aio.insecure_channel(address) as channel,
            example.SessionClient(channel) as session,
        ):
            request = await session.submit(pb.GenerationInput(text="hello"), credit=5)
            await front.engine.until(lambda: bool(front.engine.waiting))
            await request.credit(7)
            await front.engine.until(
                lambda: any(getattr(each, "tokens", 0) == 7 for each in front.engine.received)
            )
            await request.cancel()
            with pytest.raises(example.RequestFailed) as failed:
                await request.text()
            assert failed.value.code == 1


async def test_requests_of_a_lost_stream_are_told(serve_address, example):
    async with serve_address() as (front, address):
        front.engine.auto = False
        async with grpc.aio.insecure_channel(address) as channel:
            session = example.SessionClient(channel)
            request = await session.submit(pb.GenerationInput(text="hello"))
            await session._call.write(pb.SessionRequest())
            await front.engine.until(lambda: bool(front.engine.waiting))
            front.engine.die()
            with pytest.raises(example.RequestFailed):
                await request.text()


async def test_the_example_holds_a_conversation(serve_address, example, capsys):
    async with serve_address() as (front, address):
        front.says("abc")
        await example.converse(address, ["hi", "and?"])

    assert re.fullmatch(
        r"> hi\nabc\n  \(3 of \d+ tokens from the cache\)\n"
        r"> and\?\nabc\n  \(3 of \d+ tokens from the cache\)\n",
        capsys.readouterr().out,
    )


async def test_a_client_of_the_guide_speaks_vllms_protocol(serve_address, tmp_path, capsys):
    pytest.importorskip("smg_grpc_proto")
    async with serve_address() as (front, address):
        front.says_tokens(5, 6)
        file = tmp_path / "client.py"
        file.write_text(program_of("vLLM's protocol").replace("localhost:50051", address))
        await asyncio.to_thread(runpy.run_path, str(file))

        assert capsys.readouterr().out.split() == ["5", "6", str(front.engine.eos), "stop"]


def program_of(heading: str) -> str:
    """The first program under a heading of docs/grpc.md, as it stands there."""
    guide = (ROOT / "docs/grpc.md").read_text()
    section = guide.split(f"## {heading}", 1)[1]
    return section.split("```python\n", 1)[1].split("```", 1)[0]


class Lost(grpc.RpcError):
    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE


def cut_stub(ends: list[int]) -> type:
    """Of a client whose calls are lost in turn after so many messages, or before they arrive."""

    class Stub(generation_pb2_grpc.GenerationServiceStub):
        def __init__(self, channel: grpc.Channel) -> None:
            super().__init__(channel)
            self._generate = self.Generate
            self.Generate = self._cut

        def _cut(self, request: pb.GenerateRequest) -> Iterator[pb.GenerateResponse]:
            if not ends:
                yield from self._generate(request)
            elif num := ends.pop(0):
                call = self._generate(request)
                yield from islice(call, num)
                call.cancel()
                raise Lost
            else:
                raise Lost

    return Stub


@pytest.mark.parametrize("ends", [[0], [0, 2, 0, 1], [1, 1, 1]])
async def test_a_client_of_the_guide_goes_on_with_its_stream(
    serve_address, tmp_path, capsys, monkeypatch, ends
):
    num_lost = len(ends)
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    monkeypatch.setattr(generation_pb2_grpc, "GenerationServiceStub", cut_stub(ends))
    async with serve_address() as (front, address):
        front.says("abcdefgh")
        file = tmp_path / "client.py"
        file.write_text(program_of("Going on with a stream").replace("localhost:50051", address))
        await asyncio.to_thread(runpy.run_path, str(file))

    assert capsys.readouterr().out == "abcdefgh"
    assert pauses == [1] * num_lost


async def test_a_client_of_the_guide_that_knows_nothing_but_reflection(
    serve_address, tmp_path, capsys
):
    program = program_of("Without generated code")
    async with serve_address() as (front, address):
        front.says("abc")
        file = tmp_path / "client.py"
        file.write_text(program.replace("localhost:50051", address))
        await asyncio.to_thread(runpy.run_path, str(file))

    assert capsys.readouterr().out == "abc\nabc\n"
    assert "cadenza" not in re.findall(r"^(?:from|import) (\w+)", program, re.MULTILINE)
