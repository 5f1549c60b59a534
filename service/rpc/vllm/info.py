"""What vLLM's service tells of the model, the server and its load, as far as we know it."""

from __future__ import annotations

from datetime import UTC, datetime
from importlib.metadata import version

from smg_grpc_proto.generated import vllm_engine_pb2 as pb

from cadenza.service.errors import EngineUnavailable
from cadenza.service.generator import Generator
from cadenza.wire.messages import Ready

_VERSION = version("cadenza")  # which reads files


def health(generator: Generator) -> pb.HealthCheckResponse:
    """Whether a request sent now would be served, and if not, why."""
    if generator.is_ready:
        return pb.HealthCheckResponse(healthy=True, message="ready")
    if generator.engine.failure is not None:
        message = "The engine is gone."
    elif not generator.engine.is_serving:
        message = "The engine loads the model."
    else:
        message = "The service takes no further requests for now."
    return pb.HealthCheckResponse(healthy=False, message=message)


def model_info(generator: Generator) -> pb.GetModelInfoResponse:
    """Raises EngineUnavailable before the model is loaded."""
    limits = _limits(generator)
    return pb.GetModelInfoResponse(
        model_path=generator.model_name,
        served_model_name=generator.model_name,
        is_generation=True,
        max_context_length=limits.max_model_len,
        max_req_input_len=limits.max_model_len,
        vocab_size=limits.vocab_size,
        eos_token_ids=limits.eos_token_ids,
    )


def server_info(generator: Generator, uptime_s: float) -> pb.GetServerInfoResponse:
    """Raises EngineUnavailable before the model is loaded."""
    limits = _limits(generator)
    return pb.GetServerInfoResponse(
        server_type="vllm-grpc",  # of the protocol, which says so
        active_requests=generator.num_in_flight,
        is_paused=generator.is_paused,
        uptime_seconds=uptime_s,
        data_parallel_size=1,
        kv_cache_dtype="auto",
        block_size=limits.block_size,
        model_dtype=f"torch.{limits.dtype}",
        max_num_seqs=limits.max_num_seqs,
    )


def loads(generator: Generator) -> pb.GetLoadsResponse:
    """The scheduler's figures as it told them last. Raises EngineUnavailable as above."""
    limits, counters = _limits(generator), generator.engine.counters
    held = counters.total_blocks - counters.free_blocks - counters.cached_blocks
    usage = held / counters.total_blocks if counters.total_blocks else 0.0
    load = pb.SchedulerLoad(
        num_running_reqs=counters.running,
        num_waiting_reqs=counters.waiting,
        num_total_reqs=counters.running + counters.waiting,
        num_used_tokens=held * limits.block_size,
        max_total_num_tokens=limits.num_blocks * limits.block_size,
        token_usage=usage,
        utilization=usage,
        cache_hit_rate=(
            counters.prefix_hits / counters.prefix_queries if counters.prefix_queries else 0.0
        ),
        max_running_requests=limits.max_num_seqs,
    )
    return pb.GetLoadsResponse(
        timestamp=datetime.now(UTC).isoformat(),
        version=_VERSION,
        dp_rank_count=1,
        loads=[load],
    )


def _limits(generator: Generator) -> Ready:
    if generator.engine.limits is None:
        raise EngineUnavailable("The engine loads the model; ask again.")
    return generator.engine.limits
