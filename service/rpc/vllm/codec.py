"""Between vLLM's messages and the service's own words: pure functions, no I/O."""

from __future__ import annotations

from collections.abc import Sequence

from smg_grpc_proto.generated import vllm_engine_pb2 as pb

from cadenza.service.errors import InvalidRequest
from cadenza.service.events import PositionLogprobs, TokenLogprob
from cadenza.service.request import GenerationRequest
from cadenza.service.rpc.vllm.fields import SERVED
from cadenza.service.wishes import TENANT_HEADER

# In a message: a log-probability, in a message of its own, and a token id twice; and what stands
# before the best tokens beside it
_POSITION_BYTES, _HEAD_BYTES = 7 + 2 * 5, 3

_RANDOM = -1  # a seed that is none

_PATHS = {"prompt": "input", "tenant": TENANT_HEADER}


def to_request(message: pb.GenerateRequest) -> GenerationRequest:
    """The request as the client sent it; nothing is checked but that there is a prompt.

    Where 0 is no value in vLLM, the default is meant, and so it is for a seed of -1. Repeated
    fields are not copied; the request keeps `message` alive, which must not change afterwards.

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
        seed=params.seed if params.HasField("seed") and params.seed != _RANDOM else None,
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
    if field in SERVED["SamplingParams"]:
        return f"sampling_params.{field}"
    return _PATHS.get(field, field)


def add_output_logprobs(
    told: pb.OutputLogProbs, positions: Sequence[PositionLogprobs], *, has_top: bool
) -> int:
    """Add the log-probabilities of output tokens, with the best beside each if `has_top`.

    Returns how many bytes a message grows by at most, with each token's id in it once more.
    """
    told.token_ids.extend([position.sampled.token_id for position in positions])
    told.token_logprobs.extend([_logprob(position.sampled) for position in positions])
    tops = [_top(position) for position in positions] if has_top else []
    told.top_logprobs.extend(tops)
    return _most_bytes(positions, tops)


def add_input_logprobs(
    told: pb.InputLogProbs, positions: Sequence[PositionLogprobs], *, has_top: bool
) -> int:
    """The same for tokens of the prompt, of which the first has none."""
    told.token_ids.extend([position.sampled.token_id for position in positions])
    told.token_logprobs.extend(
        [pb.InputTokenLogProb(value=position.sampled.logprob) for position in positions]
    )
    tops = [_top(position) for position in positions] if has_top else []
    told.top_logprobs.extend(tops)
    return _most_bytes(positions, tops)


def _most_bytes(positions: Sequence[PositionLogprobs], tops: Sequence[pb.TopLogProbs]) -> int:
    return len(positions) * _POSITION_BYTES + sum([top.ByteSize() + _HEAD_BYTES for top in tops])


def _logprob(token: TokenLogprob) -> float:
    assert token.logprob is not None, "only a prompt's first token has no log-probability"
    return token.logprob


def _top(position: PositionLogprobs) -> pb.TopLogProbs:
    """The best tokens at a place, the most probable first."""
    return pb.TopLogProbs(
        values=[_logprob(token) for token in position.top],
        token_ids=[token.token_id for token in position.top],
    )
