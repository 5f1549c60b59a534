"""Between vLLM's messages and the service's own words: pure functions, no I/O."""

from __future__ import annotations

from collections.abc import Sequence

from smg_grpc_proto.generated import vllm_engine_pb2 as pb

from cadenza.service.errors import InvalidRequest
from cadenza.service.events import PositionLogprobs
from cadenza.service.request import GenerationRequest
from cadenza.service.wishes import FORMS

_OF_REQUEST = (
    "kv_transfer_params",
    "kv_transfer_params_json",
    "mm_inputs",
    "extra_mm_inputs",
    "media_refs",
    "data_parallel_rank",
    "dp_rank",
    "request_ids",
    *FORMS,  # which are metadata
)  # and not within `sampling_params`


def to_request(message: pb.GenerateRequest) -> GenerationRequest:
    """The request as the client sent it; nothing is checked but that there is a prompt.

    Where 0 is no value in vLLM, the default is meant. Repeated fields are not copied; the request
    keeps `message` alive, which must not change afterwards.

    Raises:
        InvalidRequest: there is no prompt.
    """
    prompt = message.WhichOneof("input")
    if prompt is None:
        raise InvalidRequest("input is required: text, or tokenized.", "prompt")
    params = message.sampling_params
    return GenerationRequest(
        text=message.text if prompt == "text" else None,
        token_ids=message.tokenized.input_ids if prompt == "tokenized" else None,
        truncate_prompt_tokens=(
            params.truncate_prompt_tokens if params.HasField("truncate_prompt_tokens") else None
        ),
        max_tokens=params.max_tokens if params.HasField("max_tokens") else None,
        min_tokens=params.min_tokens,
        temperature=params.temperature if params.HasField("temperature") else None,
        top_p=params.top_p or None,
        top_k=params.top_k,
        min_p=params.min_p,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        repetition_penalty=params.repetition_penalty or None,
        logit_bias=params.logit_bias or None,
        seed=params.seed if params.HasField("seed") else None,
        n=params.n or None,
        stop=params.stop or None,
        stop_token_ids=params.stop_token_ids or None,
        include_stop_str_in_output=params.include_stop_str_in_output,
        skip_special_tokens=params.skip_special_tokens,
        ignore_eos=params.ignore_eos,
        logprobs=params.logprobs if params.HasField("logprobs") else None,
        prompt_logprobs=params.prompt_logprobs if params.HasField("prompt_logprobs") else None,
    )


def field_path(field: str) -> str:
    """Where a field of ours stands in a request of vLLM's."""
    if field == "prompt":
        return "input"
    return field if field in _OF_REQUEST else f"sampling_params.{field}"


def add_output_logprobs(
    told: pb.OutputLogProbs, positions: Sequence[PositionLogprobs], *, has_top: bool
) -> None:
    """Add the log-probabilities of output tokens, with the best beside each if `has_top`."""
    told.token_ids.extend([position.sampled.token_id for position in positions])
    told.token_logprobs.extend([_logprob(position) for position in positions])
    if has_top:
        told.top_logprobs.extend([_top(position) for position in positions])


def add_input_logprobs(
    told: pb.InputLogProbs, positions: Sequence[PositionLogprobs], *, has_top: bool
) -> None:
    """The same for tokens of the prompt, of which the first has none."""
    for position in positions:
        told.token_ids.append(position.sampled.token_id)
        told.token_logprobs.append(pb.InputTokenLogProb(value=position.sampled.logprob))
        if has_top:
            told.top_logprobs.append(_top(position))


def _logprob(position: PositionLogprobs) -> float:
    assert position.sampled.logprob is not None, "something comes before every token of an output"
    return position.sampled.logprob


def _top(position: PositionLogprobs) -> pb.TopLogProbs:
    """The best tokens at a place, the most probable first."""
    values = [token.logprob for token in position.top if token.logprob is not None]
    return pb.TopLogProbs(values=values, token_ids=[token.token_id for token in position.top])
