"""All that faces clients: both servers, and what they serve."""

from __future__ import annotations

import asyncio
import time

import structlog

from cadenza.policies.hook_guard import HookGuard
from cadenza.service.admin import Admin, AdminAccess
from cadenza.service.ended import all_ended
from cadenza.service.engine_client import EngineClient
from cadenza.service.front_config import Addresses, FrontConfig
from cadenza.service.front_policies import FrontPolicies
from cadenza.service.generator import Generator
from cadenza.service.http.app import build_app
from cadenza.service.http.server import HttpServer
from cadenza.service.listening import is_loopback, listen
from cadenza.service.metrics import Metrics
from cadenza.service.otel import open_tracer
from cadenza.service.policy_control import PolicyControl
from cadenza.service.recorder import Recorder
from cadenza.service.rpc.server import GrpcServer
from cadenza.service.tokenizer import Tokenizer

_FLUSH_S = 1.0  # what the last words of a stream have to reach its client

_log = structlog.get_logger(__name__)


class Servers:
    """HTTP and gRPC over one generator, which asks one engine. `open`, `stop`, then `close`."""

    serving: asyncio.Future[None]  # HTTP, once open

    def __init__(
        self, config: FrontConfig, tokenizer: Tokenizer, engine: EngineClient, guard: HookGuard
    ) -> None:
        """Bind the port of HTTP.

        Raises:
            OSError: that cannot be done.
            UnusableRecording: nor can requests be written down where they shall be.
        """
        self._config = config
        self._sockets = listen("HTTP", config.host, config.port)
        self._tracer = open_tracer(config.traces_endpoint) if config.traces_endpoint else None
        self._recorder = (
            Recorder(config.record, config.engine.block_size) if config.record else None
        )
        self.metrics = Metrics(config.metrics_tenants)
        self.generator = Generator(
            engine,
            tokenizer,
            model_names=config.model_names,
            limits=config.limits,
            metrics=self.metrics,
            tracer=self._tracer,
            recorder=self._recorder,
            policies=FrontPolicies(config.profile, guard=guard, timer=time.monotonic),
        )
        self.control = PolicyControl(
            engine,
            self.generator.policies,
            config.library,
            config.engine.policies,
            preset=config.preset,
            may_set_watermark=config.may_set_watermark,
        )
        admin = Admin(
            self.control, AdminAccess(config.admin_key, is_local=is_loopback(config.host))
        )
        self.grpc = GrpcServer(
            self.generator,
            admin,
            host=config.host,
            port=config.grpc_port,
            connection_age=config.grpc_connection_age,
        )
        app = build_app(
            self.generator,
            admin,
            metrics_as_vllm=config.metrics_as_vllm,
            num_connections=self._num_connections,
        )
        self._http = HttpServer(app, self._sockets, graceful_s=_FLUSH_S)

    async def open(self) -> Addresses:
        """Let clients in.

        Raises:
            OSError: the port of gRPC cannot be bound; nothing was served.
        """
        try:
            grpc_port = await self.grpc.start()
        except BaseException:
            for sock in self._sockets:
                sock.close()
            await self.close()
            raise
        _log.info("grpc serves", port=grpc_port, services=self.grpc.services)
        self.serving = asyncio.ensure_future(self._http.serve())
        return Addresses(self._config.host, self._sockets[0].getsockname()[1], grpc_port)

    async def stop(self) -> None:
        """Send what is left to say, and let nobody in any more. Once, after `open`.

        Raises what ended either server, if that was not this.
        """
        self._http.stop()
        await all_ended(self.serving, self.grpc.stop(_FLUSH_S))

    async def close(self) -> None:
        """Let go of whatever is not a server."""
        self.generator.close()
        if self._recorder is not None:
            self._recorder.close()
        if self._tracer is not None:
            await asyncio.to_thread(self._tracer.close)

    def _num_connections(self) -> dict[str, int | None]:
        return {"http": self._http.num_connections, "grpc": self.grpc.num_connections}
