"""Fields of vLLM's requests that we do not serve: what would change the answer is refused."""

from __future__ import annotations

from smg_grpc_proto.generated import vllm_engine_pb2 as pb

from cadenza.service.errors import InvalidRequest

_NO_TRANSFER = "KV caches are not transferred here"
_NO_MEDIA = "the model takes text alone"
# Messages, which change nothing while they are empty
_UNSERVED = {
    "kv_transfer_params": _NO_TRANSFER,
    "mm_inputs": _NO_MEDIA,
    "media_refs": _NO_MEDIA,
}
_NO_PARAMS = ("", "{}", "null")


def refuse_unsupported(request: pb.GenerateRequest) -> None:
    """Look at every field that we do not serve.

    Raises:
        InvalidRequest: one has a value that would change the answer.
    """
    params = request.sampling_params
    if (constraint := params.WhichOneof("constraint")) is not None:
        _refuse(constraint, "output is not constrained to a grammar here")
    if params.grammar_from_first_token:
        _refuse("grammar_from_first_token", "output is not constrained to a grammar here")
    for field, reason in _UNSERVED.items():
        if request.HasField(field) and getattr(request, field).ByteSize():
            _refuse(field, reason)
    if request.extra_mm_inputs:
        _refuse("extra_mm_inputs", _NO_MEDIA)
    if request.kv_transfer_params_json.strip() not in _NO_PARAMS:
        _refuse("kv_transfer_params_json", _NO_TRANSFER)
    if request.data_parallel_rank:
        _refuse("data_parallel_rank", f"there is one rank, 0, and no {request.data_parallel_rank}")


def _refuse(field: str, reason: str) -> None:
    raise InvalidRequest(f"{field} is not supported: {reason}.", field)
