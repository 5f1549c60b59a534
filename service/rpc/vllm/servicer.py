"""vLLM's service as gRPC calls it."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any, Never

import grpc
import structlog
from google.protobuf.message import Message
from smg_grpc_proto.generated import common_pb2
from smg_grpc_proto.generated import vllm_engine_pb2 as pb

from cadenza.service.admin import AdminAccess
from cadenza.service.engine_questions import in_time
from cadenza.service.errors import Forbidden, InvalidRequest, RequestError
from cadenza.service.generator import Generator
from cadenza.service.rpc import status
from cadenza.service.rpc.servicer import Context, GenerationServicer, Write, decode
from cadenza.service.rpc.vllm import SERVICE, info
from cadenza.service.rpc.vllm.codec import field_path
from cadenza.service.rpc.vllm.generate import generate
from cadenza.service.rpc.vllm.running import Running
from cadenza.service.rpc.vllm.tokenizer_bundle import TokenizerBundle
from cadenza.service.wishes import read_wishes

_Unary = Callable[[bytes, Context], Awaitable[Message]]

# What there is of vLLM's methods that we do not have, and why
_UNSERVED = {
    "Embed": "the model generates text, and makes no embeddings",
    "StartProfile": "there is no profiler",
    "StopProfile": "there is no profiler",
}
_UNSERVED_STREAMS = {
    "SubscribeKvEvents": "the KV cache does not tell its events; route without them",
}

_MAX_ABORTED = 4096  # names

_log = structlog.get_logger(__name__)


class VllmServicer:
    """Serves one generator to those who speak vLLM's protocol."""

    def __init__(
        self, generator: Generator, calls: GenerationServicer, access: AdminAccess | None
    ) -> None:
        """`calls` runs those that generate; it is drained and joined for these as well.

        `access`: who may forget the prefix cache; None: nobody.
        """
        self._generator = generator
        self._calls = calls
        self._access = access
        self._running = Running()
        self._bundle = TokenizerBundle()
        self._began_s = time.monotonic()

    def handlers(self) -> grpc.GenericRpcHandler:
        """What a server needs to route the service's methods here."""
        unary: dict[str, _Unary] = {
            "HealthCheck": self._health,
            "Abort": self._abort,
            "GetModelInfo": self._model_info,
            "GetServerInfo": self._server_info,
            "GetLoads": self._loads,
            "FlushCache": self._flush,
        }
        methods: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            name: grpc.unary_unary_rpc_method_handler(_guarded(call))
            for name, call in unary.items()
        }
        for name, reason in _UNSERVED.items():
            methods[name] = grpc.unary_unary_rpc_method_handler(_unserved(name, reason))
        for name, reason in _UNSERVED_STREAMS.items():
            methods[name] = grpc.unary_stream_rpc_method_handler(_unserved(name, reason))
        methods["Generate"] = grpc.unary_stream_rpc_method_handler(self.generate)
        methods["GetTokenizer"] = grpc.unary_stream_rpc_method_handler(self.get_tokenizer)
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    async def generate(self, encoded: bytes, context: Context) -> None:
        """The Generate call."""
        await self._calls.run(context, partial(self._generate, encoded, context), field_path)

    async def get_tokenizer(self, encoded: bytes, context: Context) -> None:
        """The GetTokenizer call."""
        await self._calls.run(context, partial(self._tokenizer, encoded), field_path)

    async def _tokenizer(self, encoded: bytes, write: Write) -> None:
        decode(common_pb2.GetTokenizerRequest, encoded)
        for chunk in await self._bundle.chunks(self._generator.tokenizer):
            await write(chunk)

    async def _generate(self, encoded: bytes, context: Context, write: Write) -> None:
        request = decode(pb.GenerateRequest, encoded)
        wishes = _wishes(context)
        with self._running.entered(request.request_id) as run:
            await generate(self._generator, request, run, write, wishes)

    async def _health(self, encoded: bytes, _: Context) -> Message:
        decode(pb.HealthCheckRequest, encoded)
        return info.health(self._generator)

    async def _abort(self, encoded: bytes, _: Context) -> Message:
        names = decode(pb.AbortRequest, encoded).request_ids
        if len(names) > _MAX_ABORTED:
            message = f"request_ids are {len(names)}; at most {_MAX_ABORTED} are aborted at once."
            raise InvalidRequest(message, "request_ids")
        self._running.abort(names)
        return pb.AbortResponse()

    async def _model_info(self, encoded: bytes, _: Context) -> Message:
        decode(pb.GetModelInfoRequest, encoded)
        return info.model_info(self._generator)

    async def _server_info(self, encoded: bytes, _: Context) -> Message:
        decode(pb.GetServerInfoRequest, encoded)
        return info.server_info(self._generator, time.monotonic() - self._began_s)

    async def _loads(self, encoded: bytes, _: Context) -> Message:
        request = decode(pb.GetLoadsRequest, encoded)
        if request.dp_rank:
            raise InvalidRequest(f"dp_rank is {request.dp_rank}; there is one rank, 0.", "dp_rank")
        return info.loads(self._generator)

    async def _flush(self, encoded: bytes, context: Context) -> Message:
        """At once, and whatever runs: requests that do keep their blocks, and go on."""
        decode(common_pb2.FlushCacheRequest, encoded)
        if self._access is None:
            raise Forbidden("Nobody may administer this service.")
        self._access.check(_metadata(context))
        await in_time(self._generator.engine.reset_prefix_cache())
        return common_pb2.FlushCacheResponse(success=True, message="The prefix cache is empty.")


def _metadata(context: Context) -> Iterator[tuple[str, str]]:
    for name, value in context.invocation_metadata() or ():
        yield name, value if isinstance(value, str) else value.decode(errors="replace")


def _wishes(context: Context) -> dict[str, Any]:
    """What metadata say of a request, and the call's deadline.

    Raises:
        InvalidRequest: names the first of them that is wrong.
    """
    wishes = read_wishes(_metadata(context))
    left_s = context.time_remaining()
    if left_s is not None:
        end_s = time.monotonic() + left_s
        wishes["deadline_s"] = min(end_s, wishes.get("deadline_s", end_s))
    return wishes


def _guarded(call: _Unary) -> Callable[[bytes, Context], Awaitable[bytes]]:
    """Run the call, and tell what it raises as a status."""

    async def guarded(encoded: bytes, context: Context) -> bytes:
        try:
            return (await call(encoded, context)).SerializeToString()
        except RequestError as error:
            await status.abort(context, error, field_path)
        except Exception:
            _log.exception("call_failed")
            await status.abort(context, status.internal_error())

    return guarded


def _unserved(name: str, reason: str) -> Callable[[bytes, Context], Awaitable[Never]]:
    async def refuse(_: bytes, context: Context) -> Never:
        message = f"{name} is not served: {reason}."
        await status.end(context, grpc.StatusCode.UNIMPLEMENTED, message)

    return refuse
