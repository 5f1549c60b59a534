"""Fields of vLLM's requests that we do not serve: whatever would change the answer is refused."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import Message
from smg_grpc_proto.generated import vllm_engine_pb2 as pb

from cadenza.service.errors import InvalidRequest
from cadenza.service.rpc.vllm.fields import SERVED

_NO_GRAMMAR = "output is not constrained to a grammar here"
_NO_MEDIA = "the model takes text alone"
_NO_TRANSFER = "KV caches are not transferred here"
_REASONS = {
    **dict.fromkeys(("json_schema", "regex", "grammar", "structural_tag"), _NO_GRAMMAR),
    **dict.fromkeys(("json_object", "choice", "grammar_from_first_token"), _NO_GRAMMAR),
    **dict.fromkeys(("mm_inputs", "extra_mm_inputs", "media_refs"), _NO_MEDIA),
    **dict.fromkeys(("kv_transfer_params", "kv_transfer_params_json"), _NO_TRANSFER),
    "data_parallel_rank": "there is one rank, 0",
}
_MAY_BE_EMPTY = ("kv_transfer_params", "mm_inputs", "media_refs")
_NO_PARAMS = ("", "{}", "null")


def refuse_unsupported(request: pb.GenerateRequest) -> None:
    """Look at every field that is set, those of later versions of the messages as well.

    Raises:
        InvalidRequest: one that we do not serve has a value that may change the answer.
    """
    _refuse(request, "")
    _refuse(request.sampling_params, "sampling_params.")
    _refuse(request.tokenized, "tokenized.")


def _refuse(message: Message, path: str) -> None:
    served = SERVED[message.DESCRIPTOR.name]
    for field, value in message.ListFields():
        name = field.name
        if name not in served and not _is_neutral(name, value):
            reason = _REASONS.get(name, "this version of the service does not know it")
            raise InvalidRequest(f"{name} is not supported: {reason}.", path + name)


def _is_neutral(name: str, value: Any) -> bool:
    """Whether it is the same as no value."""
    if name in _MAY_BE_EMPTY:
        return not value.ByteSize()
    if name == "kv_transfer_params_json":
        return value.strip() in _NO_PARAMS
    return name == "data_parallel_rank" and not value
