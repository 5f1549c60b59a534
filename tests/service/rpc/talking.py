"""The client's end of a Session over a network, for tests that speak with a server."""

from __future__ import annotations

from typing import Any

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from cadenza.v1 import generation_pb2 as pb
from cadenza.v1.generation_pb2_grpc import GenerationServiceStub

TERMINALS = ("finished", "failed")


class Talk:
    """One stream, and all that it has told."""

    def __init__(self, stub: GenerationServiceStub) -> None:
        self.call = stub.Session()
        self.events: list[pb.Event] = []
        self._begun: dict[str, int] = {}  # by name: how many events there were

    async def send(self, *actions: pb.Submit | pb.Append | pb.Cancel | pb.Credit) -> None:
        for action in actions:
            if isinstance(action, pb.Submit | pb.Append):
                self._begun[action.request_id] = len(self.events)
            name = type(action).__name__.lower()
            await self.call.write(pb.SessionRequest(**{name: action}))

    async def submit(self, request_id: str, **fields: Any) -> None:
        given = pb.GenerationInput(**fields)
        await self.send(pb.Submit(request_id=request_id, input=given))

    async def append(self, request_id: str, after: str, choice: int = 0, **fields: Any) -> None:
        given = pb.GenerationInput(**fields)
        await self.send(pb.Append(request_id=request_id, after=after, choice=choice, input=given))

    async def end_of(self, request_id: str) -> pb.Event:
        """The terminal event of the latest request of this name, read until it comes."""
        while True:
            for event in self.events[self._begun.get(request_id, 0) :]:
                if event.request_id == request_id and event.WhichOneof("event") in TERMINALS:
                    return event
            response = await self.call.read()
            assert response is not grpc.aio.EOF, f"the stream ended before {request_id!r} did"
            self.events += response.events

    def of(self, request_id: str) -> list[pb.Event]:
        return [event for event in self.events if event.request_id == request_id]

    def ids_of(self, request_id: str, choice: int = 0) -> list[int]:
        """The output of a choice."""
        tokens = [event.tokens for event in self.of(request_id) if event.HasField("tokens")]
        return [token for part in tokens if part.choice == choice for token in part.token_ids]

    def text_of(self, request_id: str) -> str:
        return "".join(event.tokens.text for event in self.of(request_id))


async def refused_field(call: Any) -> str:
    """The field that the call is refused for, as its rich details name it."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        status = rpc_status.from_call(error)
        assert status is not None
        assert status.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
        request = error_details_pb2.BadRequest()
        [packed] = status.details
        assert packed.Unpack(request)
        [violation] = request.field_violations
        return violation.field
    raise AssertionError("it was not refused")


def turns(*contents: str) -> pb.Chat:
    """A chat that the user begins."""
    roles = ("user", "assistant")
    return pb.Chat(
        messages=[
            pb.ChatMessage(role=roles[index % 2], content=content)
            for index, content in enumerate(contents)
        ]
    )
