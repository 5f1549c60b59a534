"""What we use of vLLM's messages: a package must have all of it, and what it has beyond is refused.

Packages of other versions may be here for other programs' sake.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from google.protobuf.descriptor import FileDescriptor
from smg_grpc_proto.generated import common_pb2, vllm_engine_pb2

# Of a request, and of the messages in it. Their values are served, or change nothing.
SERVED: Mapping[str, frozenset[str]] = {
    "GenerateRequest": frozenset(
        {"request_id", "tokenized", "text", "sampling_params", "stream"},
    ),
    "TokenizedInput": frozenset({"original_text", "input_ids"}),
    "SamplingParams": frozenset(
        {
            "temperature",
            "top_p",
            "top_k",
            "min_p",
            "frequency_penalty",
            "presence_penalty",
            "repetition_penalty",
            "max_tokens",
            "min_tokens",
            "stop",
            "stop_token_ids",
            "skip_special_tokens",
            "spaces_between_special_tokens",
            "ignore_eos",
            "n",
            "logprobs",
            "prompt_logprobs",
            "seed",
            "include_stop_str_in_output",
            "logit_bias",
            "truncate_prompt_tokens",
        }
    ),
}
_LOGPROBS = {"token_logprobs", "token_ids", "top_logprobs"}
_USAGE = {"index", "prompt_tokens", "completion_tokens", "cached_tokens"}
_USAGE |= {"output_logprobs", "input_logprobs"}
# Of other requests and of all answers
_USED: Mapping[str, set[str]] = {
    "AbortRequest": {"request_ids"},
    "GetLoadsRequest": {"dp_rank"},
    "GenerateResponse": {"chunk", "complete"},
    "GenerateStreamChunk": {"token_ids", *_USAGE},
    "GenerateComplete": {
        "output_ids",
        "finish_reason",
        "matched_token_id",
        "matched_stop_str",
        *_USAGE,
    },
    "OutputLogProbs": _LOGPROBS,
    "InputLogProbs": _LOGPROBS,
    "InputTokenLogProb": {"value"},
    "TopLogProbs": {"values", "token_ids"},
    "HealthCheckRequest": set(),
    "HealthCheckResponse": {"healthy", "message"},
    "AbortResponse": set(),
    "GetModelInfoRequest": set(),
    "GetModelInfoResponse": {
        "model_path",
        "served_model_name",
        "is_generation",
        "max_context_length",
        "max_req_input_len",
        "vocab_size",
        "eos_token_ids",
    },
    "GetServerInfoRequest": set(),
    "GetServerInfoResponse": {
        "server_type",
        "active_requests",
        "is_paused",
        "uptime_seconds",
        "data_parallel_size",
        "kv_cache_dtype",
        "block_size",
        "model_dtype",
        "max_num_seqs",
    },
    "GetLoadsResponse": {"timestamp", "version", "dp_rank_count", "loads"},
    "SchedulerLoad": {
        "num_running_reqs",
        "num_waiting_reqs",
        "num_total_reqs",
        "num_used_tokens",
        "max_total_num_tokens",
        "token_usage",
        "utilization",
        "cache_hit_rate",
        "max_running_requests",
    },
}
_COMMON: Mapping[str, set[str]] = {
    "FlushCacheRequest": set(),
    "FlushCacheResponse": {"success", "message"},
    "GetTokenizerRequest": set(),
    "GetTokenizerChunk": {"data", "sha256"},
}
_METHODS = {
    "Generate",
    "Abort",
    "HealthCheck",
    "GetModelInfo",
    "GetServerInfo",
    "GetLoads",
    "FlushCache",
    "GetTokenizer",
}


def missing() -> list[str]:
    """What the package that is installed has not, such as `SamplingParams.seed`."""
    service = vllm_engine_pb2.DESCRIPTOR.services_by_name["VllmEngine"]
    return [
        *sorted(_METHODS.difference(service.methods_by_name)),
        *_missing(vllm_engine_pb2.DESCRIPTOR, {**SERVED, **_USED}),
        *_missing(common_pb2.DESCRIPTOR, _COMMON),
    ]


def _missing(file: FileDescriptor, used: Mapping[str, frozenset[str] | set[str]]) -> Iterator[str]:
    for name, fields in used.items():
        message = file.message_types_by_name.get(name)
        if message is None:
            yield name
        else:
            lacking = fields.difference(message.fields_by_name)
            yield from [f"{name}.{field}" for field in sorted(lacking)]
