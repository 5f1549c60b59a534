"""The options of `cadenza serve`: one model, whatever they come from.

Flags, `CADENZA_*` variables and the keys of a YAML file are its fields (`cli/config.py` puts them
together). Flags keep vLLM's spelling where vLLM has the same thing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from cyclopts import Parameter
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
)

Network = Parameter(group="Network")
Model = Parameter(group="Model")
Memory = Parameter(group="Memory and batching")
Policies = Parameter(group="Policies")
Service = Parameter(group="Service")
Server = Parameter(group="Server")
Answers = Parameter(group="Answers")

_INT64 = (1 << 63) - 1  # no message to the engine holds more
_MAX_BLOCK_SIZE = 1 << 16
_MAX_TENANTS = 64  # whose series are all scraped
_RESERVED_TENANTS = frozenset({"none", "other"})  # as in `service.metrics`, which is slow to import


def is_usable_key(key: str) -> bool:
    """Whether a header can carry it."""
    return bool(key) and all("!" <= character <= "~" for character in key)


def _power_of_two(value: int) -> int:
    if value & (value - 1):
        raise ValueError(f"Must be a power of two from 1 to {_MAX_BLOCK_SIZE}.")
    return value


def _usable_key(value: str | None) -> str | None:
    if value is not None and not is_usable_key(value):
        raise ValueError("Must be printable ASCII without spaces.")
    return value


def _not_empty(names: tuple[str, ...]) -> tuple[str, ...]:
    if not all(names):
        raise ValueError("Must not be empty.")
    return names


def _tenants(names: tuple[str, ...]) -> tuple[str, ...]:
    if len(names) > _MAX_TENANTS:
        raise ValueError(f"Must be at most {_MAX_TENANTS} tenants.")
    if any(len(name) > 128 or not is_usable_key(name) for name in names):
        raise ValueError("Must be 1 to 128 printable ASCII characters without spaces.")
    if not _RESERVED_TENANTS.isdisjoint(names):
        raise ValueError('Must not be "none" or "other", which count those without a name here.')
    return names


def _http_url(value: str | None) -> str | None:
    if value is None:
        return None
    if "@" in value:  # whatever is wrong with it besides
        raise ValueError(
            'Must hold no "@", for no user or password: OTEL_EXPORTER_OTLP_HEADERS is for secrets.'
        )
    if not re.fullmatch(r"https?://[!-~]+", value) or not _has_host(value):
        raise ValueError("Must be an address such as http://127.0.0.1:4318/v1/traces.")
    return value


def _has_host(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _cores(value: object) -> object:
    """One alone is a number in a YAML file."""
    if isinstance(value, int):
        value = str(value)
    if isinstance(value, str):
        cores_of(value)
    return value


def cores_of(text: str) -> tuple[int, ...]:
    """Numbers and ranges of them, such as 0-3,8, in ascending order. Raises ValueError."""
    ranges = [re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", part) for part in text.split(",")]
    cores = {
        core
        for found in ranges
        if found
        for core in range(int(found[1]), int(found[2] or found[1]) + 1)
    }
    is_upwards = all(found and int(found[1]) <= int(found[2] or found[1]) for found in ranges)
    if not is_upwards:
        raise ValueError("Must be numbers of cores and ranges of them, such as 0-3,8.")
    return tuple(sorted(cores))


def _several(value: object) -> object:
    """One alone, as YAML files and variables may have it."""
    return (value,) if isinstance(value, str) else value


def _secret(_type: object, value: str | None) -> None:
    _usable_key(value)


Port = Field(ge=0, le=65535)
Positive = Field(ge=1, le=_INT64)
BlockSize = Field(ge=1, le=_MAX_BLOCK_SIZE, json_schema_extra={"kind": "a power of two"})
PowerOfTwo = AfterValidator(_power_of_two)
Seats = Field(ge=1, le=1 << 16)  # each takes memory at once
Streams = Field(ge=0, le=1 << 16)
Restarts = Field(ge=0, le=1 << 16)
Kibibytes = Field(ge=16, le=1 << 20, json_schema_extra={"unit": "KiB"})
Threads = Field(ge=1, le=1024)
Share = Field(ge=0, lt=1, allow_inf_nan=False)
UsedShare = Field(ge=0.01, le=1, allow_inf_nan=False)
Seconds = Field(
    ge=0, le=365 * 24 * 3600, allow_inf_nan=False, json_schema_extra={"unit": "seconds"}
)
Gibibytes = Field(ge=0, le=1 << 16, allow_inf_nan=False, json_schema_extra={"unit": "GiB"})
Key = AfterValidator(_usable_key)
Names = AfterValidator(_not_empty)
Tenants = AfterValidator(_tenants)
Several = BeforeValidator(_several)
Url = AfterValidator(_http_url)
Cores = BeforeValidator(_cores)


@Parameter(name="*")
class PolicyOptions(BaseModel):
    """Which policies decide, and where others than the built-in ones are found."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, validate_default=True
    )

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_flags(cls, value: object, info: ValidationInfo) -> object:
        """Of true and false, which Python takes for numbers."""
        field = cls.model_fields[info.field_name or ""]
        if isinstance(value, bool) and field.annotation is not bool:
            raise ValueError("Must not be true or false.")
        return value

    scheduling_policy: Annotated[str | None, Policies] = None
    """A preset: fcfs, priority, prefix-aware, fair-share, slo or vllm-like."""

    policy: Annotated[tuple[str, ...], Policies, Parameter(negative=()), Several] = ()
    """DECISION=POLICY or DECISION=POLICY:key=value,...; may be given several times."""

    policy_file: Annotated[Path | None, Policies] = None
    """A profile in TOML; flags win over it."""

    plugins_dir: Annotated[Path | None, Policies] = None
    """A folder whose Python files hold policies."""


@Parameter(name="*")
class ServeOptions(PolicyOptions):
    """Everything that `cadenza serve` can be told."""

    model: Annotated[str, Model] = "demo"
    """A GGUF file, a model folder, a hub id, or demo; may stand without its flag."""

    host: Annotated[str, Network] = "127.0.0.1"
    """Address to listen on, for HTTP and gRPC."""

    port: Annotated[int, Network, Port] = 8000
    """HTTP port; 0 takes any free one."""

    grpc_port: Annotated[int, Network, Port] = 50051
    """gRPC port; 0 takes any free one. With cadenza[vllm-grpc] it speaks vLLM's protocol, too."""

    grpc_connection_age: Annotated[float, Network, Seconds] = 0.0
    """Seconds after which a gRPC connection takes no further calls; 0: it always does."""

    grpc_connection_age_grace: Annotated[float, Network, Seconds] = 600.0
    """Seconds that calls which still run on it get from then on."""

    allow_unauthenticated: Annotated[bool, Network] = False
    """Listen on an address that other machines can reach, although there are no keys."""

    admin_api_key: Annotated[str | None, Network, Key] = None
    """Key for administration; better in CADENZA_ADMIN_API_KEY, where other users cannot see it."""

    served_model_name: Annotated[
        tuple[str, ...], Model, Parameter(negative=()), Several, Names
    ] = ()
    """Name that clients ask for, instead of the model's own; may be given several times."""

    device: Annotated[Literal["auto", "cpu", "cuda"], Model] = "auto"
    """Where the model runs."""

    dtype: Annotated[Literal["auto", "float32", "bfloat16"], Model] = "auto"
    """Type of weights and KV cache; auto takes bfloat16 where weights and hardware have it."""

    quantization: Annotated[Literal["none", "int8", "fp8"], Model] = "none"
    """int8, or on a GPU fp8: products of layers in eight bits, for some loss: docs/models.md."""

    max_model_len: Annotated[int | None, Model, Positive] = None
    """Prompt and output tokens of a request at most; default: what the model was trained for."""

    weight_cache: Annotated[float, Model, Gibibytes] = 4.0
    """GiB on disk for dequantised weights of GGUF files, which later starts read; 0: none."""

    threads: Annotated[int | None, Model, Threads] = None
    """CPU threads of the engine; default: one a core."""

    engine_cores: Annotated[str | None, Model, Cores] = None
    """Cores that the engine stays on, such as 0-3,8; default: on no particular ones."""

    block_size: Annotated[int, Memory, BlockSize, PowerOfTwo] = 16
    """Tokens a KV block holds; a power of two."""

    num_gpu_blocks_override: Annotated[
        int | None,
        Parameter(name=["--num-gpu-blocks-override", "--num-blocks"], group="Memory and batching"),
        Positive,
    ] = None
    """KV blocks in the pool, on whatever device; default: from --kv-cache-memory-bytes."""

    kv_cache_memory_bytes: Annotated[int | None, Memory, Positive] = None
    """Memory for the KV cache; default: 1 GiB, or what --gpu-memory-utilization leaves of a GPU."""

    gpu_memory_utilization: Annotated[float, Memory, UsedShare] = 0.9
    """Share of a GPU's memory that may be in use once the KV cache has taken the rest of it."""

    deterministic: Annotated[bool, Model] = False
    """A request's tokens never depend on others: so always on the CPU; on a GPU it costs time."""

    enforce_eager: Annotated[bool, Model] = False
    """On a GPU, launch each kernel of a decode pass by itself instead of as a CUDA graph."""

    swap_space: Annotated[
        float,
        Parameter(name=["--swap-space", "--kv-offloading-size"], group="Memory and batching"),
        Gibibytes,
    ] = 0.5
    """GiB of host memory for the KV blocks of preempted requests; 0: they are recomputed."""

    max_num_seqs: Annotated[int, Memory, Seats] = 64
    """Requests that may run at once."""

    max_num_batched_tokens: Annotated[int | None, Memory, Positive] = None
    """Tokens a step computes at most; default: calibrated, so that a step takes 75 ms."""

    enable_prefix_caching: Annotated[bool, Memory] = True
    """Share the KV blocks of equal prefixes."""

    watermark: Annotated[float | None, Memory, Share] = None
    """Share of the pool that admissions leave free; default: 0.01, or what the preset wants."""

    max_num_queued_reqs: Annotated[int, Service, Positive] = 256
    """Choices that may wait for a first seat; requests beyond that are refused."""

    shutdown_timeout: Annotated[float, Service, Seconds] = 30.0
    """Seconds that requests in flight get to end after the first SIGTERM or Ctrl-C."""

    max_engine_restarts: Annotated[int, Service, Restarts] = 5
    """Engines that may be started in a minute of serving in place of others that died or hung."""

    resume_grace: Annotated[float, Service, Seconds] = 30.0
    """Seconds that a resumable stream is kept while nobody reads it; 0: it ends with its reader."""

    resume_max_streams: Annotated[int, Service, Streams] = 512
    """Resumable streams that run or are kept at once; further ones are refused. 0: none."""

    resume_buffer_kib: Annotated[int, Service, Kibibytes] = 512
    """KiB of events that are kept of each of them; what nobody reads stops at half of it."""

    metrics_compat: Annotated[Literal["vllm", "none"], Service] = "vllm"
    """Whose names metrics have beside our own: vllm's, or nobody's."""

    metrics_tenant: Annotated[
        tuple[str, ...], Service, Parameter(negative=()), Several, Tenants
    ] = ()
    """Tenant that metrics count for itself, others together; may be given several times."""

    otlp_traces_endpoint: Annotated[str | None, Service, Url] = None
    """OTLP endpoint that traces are sent to by HTTP, without secrets; needs cadenza[otel]."""

    record: Annotated[Path | None, Service] = None
    """File to append requests to, without text, and FILE.steps for steps: see docs/simulator.md."""

    log_level: Annotated[Literal["debug", "info", "warning", "error"], Service] = "warning"
    """Least severe log records that are written, to standard error."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """Which running service a command is for."""

    server: Annotated[str, Server] = "http://127.0.0.1:8000"
    """HTTP address of the running service."""

    admin_api_key: Annotated[str | None, Server, Parameter(validator=_secret)] = None
    """The key that it was started with; default: that of CADENZA_ADMIN_API_KEY, if it is set."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ChoiceOptions:
    """Policies over those of a preset, as `cadenza serve` takes them."""

    policy: Annotated[tuple[str, ...], Policies, Parameter(negative=())] = ()
    """DECISION=POLICY or DECISION=POLICY:key=value,...; may be given several times."""

    policy_file: Annotated[Path | None, Policies] = None
    """A profile in TOML; flags win over it."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ChatOptions:
    """How `cadenza chat` asks. What is not given, the service decides."""

    model: Annotated[str | None, Answers] = None
    """A name that the service serves; default: its first."""

    system: Annotated[str | None, Answers] = None
    """A message for the model before the first of yours."""

    max_tokens: Annotated[int | None, Answers] = None
    """Tokens of an answer at most."""

    temperature: Annotated[float | None, Answers] = None
    """0 is always the most probable token."""

    seed: Annotated[int | None, Answers] = None
    """The same seed gives the same answers."""
