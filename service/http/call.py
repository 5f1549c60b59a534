"""An HTTP request for generation, parsed: what both OpenAI dialects have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cadenza.service import fields
from cadenza.service.errors import InvalidRequest
from cadenza.service.http.unsupported import refuse_unsupported
from cadenza.service.request import GenerationRequest
from cadenza.service.resumption import stream_id

# Passed through as sent; `Generator.submit` checks them.
_SAMPLING = (
    "model",
    "min_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "allowed_token_ids",
    "bad_words",
    "seed",
    "n",
    "stop",
    "stop_token_ids",
    "include_stop_str_in_output",
    "skip_special_tokens",
    "echo",
    "prompt_logprobs",
    "ignore_eos",
    "add_special_tokens",
    "truncate_prompt_tokens",
    "truncation_side",
    "priority",
    "cache_salt",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One HTTP call: usually one request, several for a list of prompts."""

    requests: Sequence[GenerationRequest]
    stream: bool
    include_usage: bool  # a last chunk with the usage
    continuous_usage: bool  # the usage so far in every chunk
    token_ids: bool  # of prompts and of what is said
    notices: bool  # what the scheduler does, among the chunks
    names: dict[str, str]  # our name of a field -> the client's
    stream_id: str | None = None  # by which the stream may be resumed

    def with_wishes(self, wishes: Mapping[str, Any]) -> Call:
        """The call with these fields set in all its requests."""
        if not wishes:
            return self
        return replace(self, requests=[replace(each, **wishes) for each in self.requests])


def parse_call(
    body: Mapping[str, Any],
    prompts: Sequence[Mapping[str, Any]],
    common: Mapping[str, Any],
    names: dict[str, str],
) -> Call:
    """One request for each of `prompts`, the fields of `common` and the body's in all of them.

    Raises:
        InvalidRequest: an unsupported field, or streaming options that make no sense.
    """
    refuse_unsupported(body)
    shared = {name: body.get(name) for name in _SAMPLING} | dict(common)
    if isinstance(shared["stop"], str):
        shared["stop"] = [shared["stop"]]
    stream = _flag(body, "stream")
    if stream and shared["prompt_logprobs"] is not None:
        raise InvalidRequest(
            "prompt_logprobs are told only where the answer is not streamed.", "prompt_logprobs"
        )
    options = _stream_options(body.get("stream_options"), stream)
    include_usage = _flag(options, "include_usage", "stream_options.")
    continuous_usage = _flag(options, "continuous_usage_stats", "stream_options.")
    return Call(
        requests=[GenerationRequest(**shared, **prompt) for prompt in prompts],
        stream=stream,
        include_usage=include_usage,
        token_ids=_flag(body, "return_token_ids"),
        continuous_usage=include_usage and continuous_usage,
        notices=_flag(options, "include_notices", "stream_options."),
        names=names,
        stream_id=_stream_id(body, stream, len(prompts)),
    )


def _stream_id(body: Mapping[str, Any], stream: bool, num_prompts: int) -> str | None:
    if body.get("stream_id") is None:
        return None
    checked = stream_id(body["stream_id"])
    if not stream:
        raise InvalidRequest("stream_id needs stream to be true.", "stream_id")
    if num_prompts > 1:
        raise InvalidRequest("stream_id needs a single prompt.", "stream_id")
    if body.get("echo"):
        raise InvalidRequest("A stream that can be resumed does not echo its prompt.", "echo")
    if body.get("return_token_ids"):
        # Every choice of a completion would begin with the prompt, and what is kept is bounded
        raise InvalidRequest(
            "A stream that can be resumed tells no ids of tokens: leave return_token_ids out, or "
            "ask over gRPC.",
            "return_token_ids",
        )
    return checked


def _stream_options(options: Any, stream: bool) -> Mapping[str, Any]:
    if options is None:
        return {}
    if not isinstance(options, Mapping):
        raise InvalidRequest("stream_options must be an object.", "stream_options")
    if not stream:
        raise InvalidRequest("stream_options needs stream to be true.", "stream_options")
    return options


def _flag(body: Mapping[str, Any], name: str, within: str = "") -> bool:
    value = body.get(name)
    return False if value is None else fields.flag(value, within + name)
