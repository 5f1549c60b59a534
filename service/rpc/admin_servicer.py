"""The admin service as gRPC calls it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import grpc

from cadenza.service.admin import AdminAccess
from cadenza.service.engine_questions import in_time
from cadenza.service.errors import InvalidRequest, UnknownRequest
from cadenza.service.generator import Generator
from cadenza.service.rpc.admin_calls import admin_handlers
from cadenza.service.rpc.admin_codec import to_engine, to_record, to_request_snapshot
from cadenza.service.rpc.servicer import decode
from cadenza.service.timelines import UNKNOWN, generation_id
from cadenza.v1 import admin_pb2 as pb

SERVICE: str = pb.DESCRIPTOR.services_by_name["AdminService"].full_name

MAX_TOLD = 1000  # requests of a snapshot
_USUALLY_TOLD = 100


class AdminServicer:
    """Serves administrators of one generator."""

    def __init__(
        self,
        generator: Generator,
        access: AdminAccess,
        on_readiness: Callable[[], Awaitable[None]],
    ) -> None:
        """`on_readiness` is called after the generator has begun or ceased to take requests."""
        self._generator = generator
        self._access = access
        self._on_readiness = on_readiness

    def handlers(self) -> grpc.GenericRpcHandler:
        """What a server needs to route the service's methods here."""
        calls = {
            "GetLoad": self._load,
            "GetSnapshot": self._snapshot,
            "GetTimeline": self._timeline,
            "ResetPrefixCache": self._reset,
            "Drain": self._drain,
            "Resume": self._resume,
        }
        return admin_handlers(SERVICE, self._access, calls)

    async def _load(self, encoded: bytes) -> pb.GetLoadResponse:
        decode(pb.GetLoadRequest, encoded)
        return self._told_load()

    async def _snapshot(self, encoded: bytes) -> pb.GetSnapshotResponse:
        request = decode(pb.GetSnapshotRequest, encoded)
        most = request.max_requests if request.HasField("max_requests") else _USUALLY_TOLD
        if most > MAX_TOLD:
            message = f"max_requests is {most}; at most {MAX_TOLD} are told"
            raise InvalidRequest(message, "max_requests")
        generator = self._generator
        limits = generator.engine.limits
        statuses = generator.open_statuses()
        return pb.GetSnapshotResponse(
            load=self._told_load(),
            is_ready=generator.is_ready,
            is_draining=generator.is_paused,
            max_queued=generator.limits.max_queued,
            engine=None if limits is None else to_engine(limits, generator.engine.counters),
            requests=[to_request_snapshot(*each) for each in statuses[:most]],
            num_requests=len(statuses),
        )

    async def _timeline(self, encoded: bytes) -> pb.GetTimelineResponse:
        name = generation_id(decode(pb.GetTimelineRequest, encoded).id)
        status = self._generator.status(name)
        timeline = self._generator.timeline(name)
        if status is None or timeline is None:
            raise UnknownRequest(UNKNOWN)
        return pb.GetTimelineResponse(
            request=to_request_snapshot(name, status),
            records=[to_record(record, status.subject.began_s) for record in timeline.records],
            dropped=timeline.num_dropped,
        )

    async def _reset(self, encoded: bytes) -> pb.ResetPrefixCacheResponse:
        decode(pb.ResetPrefixCacheRequest, encoded)
        await in_time(self._generator.engine.reset_prefix_cache())
        return pb.ResetPrefixCacheResponse()

    async def _drain(self, encoded: bytes) -> pb.DrainResponse:
        request = decode(pb.DrainRequest, encoded)
        timeout_s = request.timeout.seconds + request.timeout.nanos * 1e-9
        if timeout_s < 0:
            raise InvalidRequest(f"timeout is {timeout_s:g} s; it must not be negative", "timeout")
        self._generator.pause()
        await self._on_readiness()
        if timeout_s:
            await self._generator.wait_while_paused(timeout_s)
        return pb.DrainResponse(in_flight=self._generator.num_in_flight)

    async def _resume(self, encoded: bytes) -> pb.ResumeResponse:
        decode(pb.ResumeRequest, encoded)
        self._generator.resume()
        await self._on_readiness()
        return pb.ResumeResponse(is_ready=self._generator.is_ready)

    def _told_load(self) -> pb.GetLoadResponse:
        generator = self._generator
        return pb.GetLoadResponse(in_flight=generator.num_in_flight, queued=generator.num_queued)
