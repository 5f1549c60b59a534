"""What the front process serves, and where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from cadenza.policies.library import Library
from cadenza.policies.profile import Profile
from cadenza.service.limits import Limits
from cadenza.service.rpc.connections import ANY_AGE, ConnectionAge
from cadenza.service.supervisor import MAX_RESTARTS
from cadenza.wire.messages import EngineConfig


class Addresses(NamedTuple):
    """Where clients reach us; the ports are those in force."""

    host: str
    http_port: int
    grpc_port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontConfig:
    """The front's own settings, and those of its engine. Port 0 takes any free one."""

    host: str
    port: int
    grpc_port: int
    model_names: Sequence[str]
    engine: EngineConfig
    limits: Limits = field(default_factory=Limits)
    profile: Profile = field(default_factory=Profile)  # the engine builds one of its own
    library: Library = field(default_factory=Library)  # which it was built of
    preset: str | None = None  # which it began with
    may_set_watermark: bool = True  # whether presets may
    admin_key: str | None = None
    traces_endpoint: str | None = None  # of OTLP by HTTP
    record: Path | None = None  # where requests are written down for the simulator
    metrics_tenants: Sequence[str] = ()  # that get series of their own
    metrics_as_vllm: bool = True  # whether metrics go by vLLM's names as well
    grpc_connection_age: ConnectionAge = ANY_AGE
    shutdown_timeout_s: float = 30.0  # for requests in flight after the first signal
    max_engine_restarts: int = MAX_RESTARTS  # within a minute of serving
