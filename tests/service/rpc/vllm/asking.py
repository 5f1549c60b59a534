"""The client's end of vLLM's service."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from smg_grpc_proto.generated import vllm_engine_pb2 as pb
from smg_grpc_proto.generated.vllm_engine_pb2_grpc import VllmEngineStub

from cadenza.service.rpc import GrpcServer

GENERATE = "/vllm.grpc.engine.VllmEngine/Generate"


@dataclass
class Served:
    """A front, its server, and a client's connection to that."""

    front: Any
    server: GrpcServer
    port: int
    channel: grpc.aio.Channel
    stub: VllmEngineStub

    async def ask(self, **fields: Any) -> Told:
        """The whole answer to a request."""
        return await tell(self.stub.Generate(request_of(**fields)))


@dataclass
class Told:
    """An answer, and how the call ended."""

    chunks: list[pb.GenerateStreamChunk]
    completes: list[pb.GenerateComplete]
    code: grpc.StatusCode
    details: str
    wrong: list[str]  # fields

    def ids(self, choice: int = 0) -> list[int]:
        """What chunks told of a choice."""
        mine = [chunk for chunk in self.chunks if chunk.index == choice]
        return [token for chunk in mine for token in chunk.token_ids]


async def tell(call: Any) -> Told:
    """All that a call tells until it ends."""
    told = Told([], [], grpc.StatusCode.OK, "", [])
    try:
        async for response in call:
            if response.HasField("chunk"):
                told.chunks.append(response.chunk)
            else:
                told.completes.append(response.complete)
    except grpc.aio.AioRpcError as error:
        told.code, told.details = error.code(), error.details()
        told.wrong = wrong_fields(error)
    return told


def wrong_fields(error: grpc.aio.AioRpcError) -> list[str]:
    """The fields that a refusal names."""
    status = rpc_status.from_call(error)
    told = error_details_pb2.BadRequest()
    for detail in () if status is None else status.details:
        detail.Unpack(told)
    return [violation.field for violation in told.field_violations]


def request_of(
    text: str | None = "hi",
    *,
    ids: list[int] | None = None,
    stream: bool = True,
    request_id: str = "a",
    **params: Any,
) -> pb.GenerateRequest:
    """A request of a text, or of ids; what else is given are its `sampling_params`."""
    request = pb.GenerateRequest(
        request_id=request_id, stream=stream, sampling_params=pb.SamplingParams(**params)
    )
    if ids is not None:
        request.tokenized.input_ids.extend(ids)
    elif text is not None:
        request.text = text
    return request
