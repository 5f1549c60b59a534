"""The gRPC server: one port with generation, administration, health and reflection."""

from __future__ import annotations

import asyncio
import errno
import socket

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from cadenza.service.admin import Admin
from cadenza.service.generator import Generator
from cadenza.service.listening import why
from cadenza.service.rpc.admin_servicer import SERVICE as ADMIN_SERVICE
from cadenza.service.rpc.admin_servicer import AdminServicer
from cadenza.service.rpc.channelz import ConnectionCounter
from cadenza.service.rpc.connections import ANY_AGE, ConnectionAge, server_options
from cadenza.service.rpc.policy_servicer import SERVICE as POLICY_SERVICE
from cadenza.service.rpc.policy_servicer import PolicyServicer
from cadenza.service.rpc.servicer import SERVICE, STALL_S, GenerationServicer
from cadenza.service.rpc.unknown import UnknownMethods
from cadenza.service.rpc.vllm import SERVICE as VLLM_SERVICE
from cadenza.service.rpc.vllm import open_handlers


class GrpcServer:
    """Serves a generator over gRPC, on the running loop.

    `start` once, `set_ready` whenever the engine begins or ceases to take requests, `stop` at the
    end. While it is not ready the health service says NOT_SERVING; requests are passed to the
    generator all the same.
    """

    def __init__(
        self,
        generator: Generator,
        admin: Admin | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 50051,
        connection_age: ConnectionAge = ANY_AGE,
        stall_s: float = STALL_S,
    ) -> None:
        """Serve `generator`, and administration to whom `admin` lets in; None: nobody.

        `stall_s`: a call is cancelled when its client has read nothing for so long.
        """
        self._host = host
        self._port = port
        self._generator = generator
        self._is_ready = False
        self._options = server_options(connection_age)
        self._servicer = GenerationServicer(generator, stall_s=stall_s)
        handlers = {SERVICE: self._servicer.handlers()}
        if admin is not None:
            handlers[POLICY_SERVICE] = PolicyServicer(admin).handlers()
            servicer = AdminServicer(generator, admin.access, self._tell_readiness)
            handlers[ADMIN_SERVICE] = servicer.handlers()
        vllm = open_handlers(generator, self._servicer, None if admin is None else admin.access)
        if vllm is not None:
            handlers[VLLM_SERVICE] = vllm
        self._handlers = handlers
        self._server: grpc.aio.Server | None = None
        self._counter: ConnectionCounter | None = None
        self._health: health.aio.HealthServicer | None = None
        self._telling = asyncio.Lock()
        self._stopping = asyncio.Lock()

    @property
    def services(self) -> tuple[str, ...]:
        """The full names of those that it serves, but for health and reflection."""
        return tuple(self._handlers)

    @property
    def num_connections(self) -> int | None:
        """Connections that clients have open, with calls or without; 0 unless it serves.

        None: nobody knows. From any thread, as `ConnectionCounter.count`.
        """
        if self._server is None or self._counter is None:
            return 0
        return self._counter.count()

    async def start(self) -> int:
        """Bind and serve; the port, which the system chooses for port 0.

        Raises OSError, with a reason for a person, if any address of the host cannot be bound.
        """
        self._counter = ConnectionCounter()
        server = grpc.aio.server(options=self._options)
        self._counter.server_made()
        self._health = health.aio.HealthServicer()
        server.add_generic_rpc_handlers(tuple(self._handlers.values()))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        names = (*self._handlers, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, server)
        server.add_generic_rpc_handlers((UnknownMethods(names),))
        await self.set_ready(False)
        port = await self._bind(server)
        await server.start()
        self._server = server
        return port

    async def set_ready(self, is_ready: bool) -> None:
        """What the health service says of the whole server and of its services.

        While the generator is paused it is NOT_SERVING all the same.
        """
        self._is_ready = is_ready
        await self._tell_readiness()

    async def _tell_readiness(self) -> None:
        assert self._health is not None, "start comes first"
        states = health_pb2.HealthCheckResponse
        async with self._telling:  # else one that began earlier might have the last word
            is_serving = self._is_ready and not self._generator.is_paused
            state = states.SERVING if is_serving else states.NOT_SERVING
            for service in ("", *self._handlers):
                await self._health.set(service, state)

    async def stop(self, grace_s: float) -> None:
        """Refuse new requests, let the running ones end for `grace_s`, then cancel what is left.

        Returns when every call's cleanup is done: no generation is left running. The port stays
        open during the grace period, so that probes are told NOT_SERVING. May be called again, to
        shorten the grace, and does nothing on a server that was not started.
        """
        if self._health is not None:
            await self._health.enter_graceful_shutdown()
        self._servicer.drain()
        await self._servicer.join(grace_s)
        # gRPC's own stop comes last, as watchers of health and users of reflection would hold it
        # for all of a grace; and only once, as a second call while the first ends crashes the
        # process (grpcio 1.85).
        async with self._stopping:
            server, self._server = self._server, None
            if server is not None:
                await server.stop(None)
        await self._servicer.join()

    async def _bind(self, server: grpc.aio.Server) -> int:
        """Bind every address of the host: gRPC itself is content with any one of them."""
        port = self._port
        try:
            for address in await _resolve(self._host):
                port = _bind(server, address, port)
        except OSError as error:
            message = f"gRPC cannot listen on {self._host}:{port}: {why(error)}"
            raise OSError(message) from error
        return port


async def _resolve(host: str) -> list[str]:
    """The host's numeric addresses. Raises OSError."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


def _bind(server: grpc.aio.Server, address: str, port: int) -> int:
    """Bind one numeric address; the port. Raises OSError."""
    is_v6 = ":" in address
    # gRPC neither says why it cannot bind nor stays quiet about it: the system is asked first.
    family = socket.AF_INET6 if is_v6 else socket.AF_INET
    socket.create_server((address, port), family=family).close()
    try:
        return server.add_insecure_port(f"[{address}]:{port}" if is_v6 else f"{address}:{port}")
    except RuntimeError as error:
        raise OSError(errno.EADDRINUSE, "the port is in use") from error
