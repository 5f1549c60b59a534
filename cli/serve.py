"""`cadenza serve`: checks what can be checked at once, starts the engine, and serves."""

from __future__ import annotations

import sys
from contextlib import ExitStack

import structlog
import uvloop

from cadenza.checkpoints.errors import CheckpointError
from cadenza.checkpoints.locate import Located, locate
from cadenza.cli.config import DEFAULT, Resolved
from cadenza.cli.config_reports import show_given, warn
from cadenza.cli.errors import UsageError
from cadenza.cli.options import ServeOptions, cores_of
from cadenza.cli.output import complain, write
from cadenza.cli.profile import configure
from cadenza.cli.progress import Progress
from cadenza.policies.errors import ProfileError
from cadenza.service import otel
from cadenza.service.engine_process import EngineProcess
from cadenza.service.front import Front
from cadenza.service.front_config import Addresses, FrontConfig
from cadenza.service.limits import Limits, ResumptionLimits
from cadenza.service.listening import is_loopback, listen
from cadenza.service.recorder import Recorder, UnusableRecording
from cadenza.service.rpc.connections import ConnectionAge
from cadenza.service.tokenizer import Tokenizer, load_tokenizer
from cadenza.wire.heap import freeze_heap
from cadenza.wire.logging import configure_logging
from cadenza.wire.messages import EngineConfig, Ready

DEFAULT_WATERMARK = 0.01

_log = structlog.get_logger(__name__)


def run(resolved: Resolved, process: EngineProcess) -> int:
    """Serve until stopped; returns 0 after a signal, 1 if the engine died while it served.

    The engine process waits to be told what to load. It has left on return, and is the caller's to
    end where this raises.

    Raises:
        UsageError: the model, an option or a port cannot be used.
    """
    located, config, tokenizer = _prepared(resolved)
    configure_logging(config.engine.log_level)
    _log.info("options", **_given(resolved))
    progress = Progress(sys.stdout)
    progress.note(f"Loading {located.served_name}")
    was_ready = False

    def on_ready(ready: Ready, addresses: Addresses) -> None:
        nonlocal was_ready
        was_ready = True
        freeze_heap()
        progress.done()
        progress.note(banner(config.model_names[0], ready, addresses))

    front = Front(config, tokenizer, process, on_progress=progress.show, on_ready=on_ready)
    try:
        failure = uvloop.run(front.run())
    except (OSError, UnusableRecording) as error:
        raise UsageError(str(error)) from error
    finally:
        progress.done()
    if failure is not None and not was_ready:
        raise UsageError(failure)
    if failure is not None:
        complain(failure)
    return 0 if failure is None else 1


def check(resolved: Resolved) -> int:
    """Do all that `run` does before it starts anything, and write what it would go by.

    Raises:
        UsageError: as `run`.
    """
    located, config, _ = _prepared(resolved)
    _check_ports(config)
    show_given(resolved)
    write(f"{located.path} would be served as {', '.join(config.model_names)}\n")
    return 0


def _prepared(resolved: Resolved) -> tuple[Located, FrontConfig, Tokenizer]:
    """Everything that can be known before the engine starts."""
    options = resolved.options
    configure_logging(options.log_level)
    warn(resolved.warnings)
    _check_host(options)
    if options.otlp_traces_endpoint is not None and not otel.is_installed():
        raise UsageError("--otlp-traces-endpoint needs OpenTelemetry: pip install 'cadenza[otel]'")
    try:
        located = locate(options.model)
        config = _front_config(located, options)
        if config.record is not None:
            Recorder(config.record, config.engine.block_size).close()
        return located, config, load_tokenizer(located.path)
    except (CheckpointError, ProfileError, UnusableRecording) as error:
        raise UsageError(str(error)) from error


def _check_ports(config: FrontConfig) -> None:
    """Listen on both at once, as `run` does: one port may be free, and not twice."""
    with ExitStack() as held:
        try:
            for protocol, port in (("HTTP", config.port), ("gRPC", config.grpc_port)):
                for sock in listen(protocol, config.host, port):
                    held.callback(sock.close)
        except OSError as error:
            raise UsageError(str(error)) from error


def _given(resolved: Resolved) -> dict[str, object]:
    """The options that are not the defaults, for the log."""
    shown = resolved.shown()
    return {name: value for name, value in shown.items() if resolved.sources[name] != DEFAULT}


def banner(model: str, ready: Ready, addresses: Addresses) -> str:
    """What a person reads when everything is up: figures in force, and what to try."""
    http = f"http://{_bracketed(addresses.host)}:{addresses.http_port}"
    body = (
        f'{{"model": "{model}", "stream": true, '
        '"messages": [{"role": "user", "content": "What is the capital of France?"}]}'
    )
    quantised = "" if ready.quantization == "none" else f" with {ready.quantization} products"
    return "\n".join(
        (
            f"{model} is ready after {ready.load_s:.1f} s: "
            f"{ready.dtype}{quantised} on {ready.device}, "
            f"{ready.num_blocks} blocks of {ready.block_size} tokens, "
            f"{ready.max_num_seqs} seats, {ready.max_num_batched_tokens} tokens a step.",
            f"HTTP {http}/v1    gRPC {_bracketed(addresses.host)}:{addresses.grpc_port}",
            "Try:",
            f"  curl -N {http}/v1/chat/completions -H 'content-type: application/json' \\",
            f"    -d '{body}'",
            "Stop with Ctrl-C.",
        )
    )


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _check_host(options: ServeOptions) -> None:
    if not (is_loopback(options.host) or options.allow_unauthenticated):
        raise UsageError(
            f"--host {options.host} lets other machines in, and there are no keys to ask for; "
            "say --allow-unauthenticated if that is what you want"
        )


def _front_config(located: Located, options: ServeOptions) -> FrontConfig:
    """Raises ProfileError for a profile or a plugin that cannot be used."""
    configured = configure(options, may_set_watermark=options.watermark is None, is_tried=True)
    return FrontConfig(
        host=options.host,
        port=options.port,
        grpc_port=options.grpc_port,
        model_names=options.served_model_name or (located.served_name,),
        limits=Limits(
            max_queued=options.max_num_queued_reqs,
            resumption=ResumptionLimits(
                grace_s=options.resume_grace,
                max_streams=options.resume_max_streams,
                max_bytes=options.resume_buffer_kib << 10,
            ),
        ),
        profile=configured.profile,
        library=configured.library,
        preset=configured.preset,
        may_set_watermark=options.watermark is None,
        admin_key=options.admin_api_key,
        traces_endpoint=options.otlp_traces_endpoint,
        record=options.record,
        metrics_tenants=options.metrics_tenant,
        metrics_as_vllm=options.metrics_compat == "vllm",
        grpc_connection_age=ConnectionAge(
            max_s=options.grpc_connection_age or None,
            grace_s=options.grpc_connection_age_grace,
        ),
        shutdown_timeout_s=options.shutdown_timeout,
        max_engine_restarts=options.max_engine_restarts,
        engine=EngineConfig(
            model=str(located.path),
            device=options.device,
            dtype=options.dtype,
            quantization=options.quantization,
            max_model_len=options.max_model_len,
            weight_cache_bytes=int(options.weight_cache * (1 << 30)),
            block_size=options.block_size,
            num_blocks=options.num_gpu_blocks_override,
            kv_cache_bytes=options.kv_cache_memory_bytes,
            gpu_memory_utilization=options.gpu_memory_utilization,
            deterministic=options.deterministic,
            enforce_eager=options.enforce_eager,
            swap_bytes=int(options.swap_space * (1 << 30)),
            max_num_seqs=options.max_num_seqs,
            max_num_batched_tokens=options.max_num_batched_tokens,
            enable_prefix_caching=options.enable_prefix_caching,
            watermark=DEFAULT_WATERMARK if options.watermark is None else options.watermark,
            threads=options.threads,
            cores=None if options.engine_cores is None else cores_of(options.engine_cores),
            step_log=None if options.record is None else f"{options.record.absolute()}.steps",
            policies=configured.config,
            log_level=_log_level(options.log_level, configured.config.trace),
            log_json=not sys.stderr.isatty(),
        ),
    )


def _log_level(level: str, trace: bool) -> str:
    """Calls of hooks are logged as information; whoever asked for them sees them."""
    return "info" if trace and level != "debug" else level
