"""From a client's request to checked values. Knows no model: `Generator` checks lengths."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from cadenza.service import fields
from cadenza.service.choice import TextOptions
from cadenza.service.constraints import Ending, check_bad_words, check_min_tokens, constraints
from cadenza.service.limits import Limits
from cadenza.service.prompt import Prompt, check_prompt
from cadenza.service.request import GenerationRequest
from cadenza.wire.messages import Ready, Sampling

INT32 = 2**31 - 1
_UINT32 = 2**32 - 1
INT64 = 2**63 - 1
MAX_TEMPERATURE = 100.0
# Below this the softmax is one-hot in float32, or overflows: it is greedy by another name
_GREEDY_BELOW = 1e-5
# vLLM takes whatever is above 0, but logits must stay finite when they are divided by it
MIN_REPETITION_PENALTY = 0.01
MAX_REPETITION_PENALTY = 100.0
MAX_TARGET_S = 86_400.0


# What is the same object in all requests of a call for several prompts
_COMMON = tuple(
    field.name
    for field in dataclasses.fields(GenerationRequest)
    if field.name not in ("text", "token_ids")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedRequest:
    """A request whose values are all in range, defaults filled in."""

    prompt: Prompt
    max_tokens: int | None  # None: the rest of the context
    sampling: Sampling  # without bad words, which have no ids yet
    bad_words: tuple[str, ...]
    num_choices: int
    text: TextOptions
    min_tokens: int  # before a choice may end
    stop_token_ids: tuple[int, ...]
    ignore_eos: bool
    priority: int
    cache_salt: str
    tenant: str
    ttft_target_s: float | None
    tpot_target_s: float | None
    deadline_s: float | None
    credit: int | None  # tokens, of all choices together

    @property
    def least_room(self) -> int:
        """Tokens that a prompt must leave room for if it can be truncated."""
        return _least_room(self.max_tokens, self.min_tokens)


def check_all(
    requests: Sequence[GenerationRequest], limits: Limits, engine: Ready
) -> list[CheckedRequest]:
    """Check each as `check` does; what the prompts of one call have in common is looked at once.

    Raises:
        InvalidRequest: names the first field that is wrong.
    """
    first = check(requests[0], limits, engine)
    return [first, *(_like(first, requests[0], other, limits, engine) for other in requests[1:])]


def _like(
    first: CheckedRequest,
    model: GenerationRequest,
    request: GenerationRequest,
    limits: Limits,
    engine: Ready,
) -> CheckedRequest:
    if any(getattr(request, field) is not getattr(model, field) for field in _COMMON):
        return check(request, limits, engine)
    return replace(
        first,
        prompt=check_prompt(request, limits, engine, first.least_room),
        sampling=msgspec.structs.replace(first.sampling, seed=_seed(request.seed)),
    )


def check(request: GenerationRequest, limits: Limits, engine: Ready) -> CheckedRequest:
    """Check every field but the model's name, and the lengths of what is yet to be encoded.

    Raises:
        InvalidRequest: names the first field that is wrong.
    """
    echo = _flag(request, "echo", False)
    logprobs = _optional_integer(request.logprobs, "logprobs", 0, limits.max_logprobs)
    told = _optional_integer(request.prompt_logprobs, "prompt_logprobs", 0, limits.max_logprobs)
    # A prompt alone may be what is asked about
    least = 0 if echo or told is not None else 1
    max_tokens = _optional_integer(request.max_tokens, "max_tokens", least, INT32)
    min_tokens = check_min_tokens(request.min_tokens, max_tokens)
    stop_token_ids = _stop_token_ids(request.stop_token_ids, limits, engine.vocab_size)
    ignore_eos = _flag(request, "ignore_eos", False)
    eos = () if ignore_eos else engine.eos_token_ids
    num_choices = _default(_optional_integer(request.n, "n", 1, limits.max_choices), 1)
    ending = Ending(token_ids={*stop_token_ids, *eos}, min_tokens=min_tokens)
    echoed = logprobs if echo and request.messages is None else None
    return CheckedRequest(
        prompt=check_prompt(request, limits, engine, _least_room(max_tokens, min_tokens)),
        max_tokens=None if max_tokens is None else max(1, max_tokens),  # the engine draws one
        sampling=msgspec.structs.replace(
            _sampling(request, limits, engine, ending),
            logprobs=logprobs,
            prompt_logprobs=_most(told, echoed),
        ),
        bad_words=check_bad_words(request.bad_words, limits),
        num_choices=num_choices,
        text=TextOptions(
            stops=_stops(request.stop, limits),
            min_tokens=min_tokens,
            include_stop=_flag(request, "include_stop_str_in_output", False),
            skip_special_tokens=_flag(request, "skip_special_tokens", True),
            echo="" if echo else None,  # the text itself comes with the ids
            echoed_logprobs=echoed,
            prompt_logprobs=told,
            generates=max_tokens != 0,
        ),
        min_tokens=min_tokens,
        stop_token_ids=stop_token_ids,
        ignore_eos=ignore_eos,
        priority=_default(_optional_integer(request.priority, "priority", -INT32 - 1, INT32), 0),
        cache_salt=_name(request.cache_salt, "cache_salt", limits.max_salt_chars),
        tenant=_name(request.tenant, "tenant", limits.max_tenant_chars),
        ttft_target_s=_target(request.ttft_target_s, "ttft_target_s"),
        tpot_target_s=_target(request.tpot_target_s, "tpot_target_s"),
        deadline_s=request.deadline_s,
        # A prompt with several choices draws a token for each of them at once
        credit=_optional_integer(
            request.credit, "credit", num_choices if num_choices > 1 else 0, _UINT32
        ),
    )


def _sampling(
    request: GenerationRequest, limits: Limits, engine: Ready, ending: Ending
) -> Sampling:
    usual = engine.sampling
    temperature = _number(
        request.temperature, "temperature", 0.0, MAX_TEMPERATURE, usual.temperature
    )
    return Sampling(
        temperature=0.0 if temperature < _GREEDY_BELOW else temperature,
        top_k=_top_k(request.top_k, usual.top_k),
        top_p=_number(request.top_p, "top_p", 0.0, 1.0, usual.top_p, above=True),
        min_p=_number(request.min_p, "min_p", 0.0, 1.0, usual.min_p),
        presence_penalty=_number(request.presence_penalty, "presence_penalty", -2.0, 2.0, 0.0),
        frequency_penalty=_number(request.frequency_penalty, "frequency_penalty", -2.0, 2.0, 0.0),
        repetition_penalty=_number(
            request.repetition_penalty,
            "repetition_penalty",
            MIN_REPETITION_PENALTY,
            MAX_REPETITION_PENALTY,
            usual.repetition_penalty,
        ),
        seed=_seed(request.seed),
        **constraints(request, limits, engine.vocab_size, ending),
    )


def _most(*wanted: int | None) -> int | None:
    return max((number for number in wanted if number is not None), default=None)


def _least_room(max_tokens: int | None, min_tokens: int) -> int:
    """At least one: the engine draws one even where nothing is said."""
    return max(1, min_tokens if max_tokens is None else max_tokens)


def _flag(request: GenerationRequest, field: str, default: bool) -> bool:
    value = getattr(request, field)
    return default if value is None else fields.flag(value, field)


def _top_k(value: Any, usual: int) -> int:
    top_k = _default(_optional_integer(value, "top_k", -1, INT32), usual)
    return max(top_k, 0)  # -1 is off too, as in vLLM


def _seed(value: Any) -> int:
    if value is None:
        return secrets.randbits(64)
    return fields.integer(value, "seed", -INT64 - 1, INT64) % 2**64


def _stops(value: Any, limits: Limits) -> tuple[str, ...]:
    if value is None:
        return ()
    stops = fields.items([value] if isinstance(value, str) else value, "stop", limits.max_stops)
    return tuple(
        fields.string(stop, "stop", max_chars=limits.max_stop_chars, empty=False) for stop in stops
    )


def _stop_token_ids(value: Any, limits: Limits, vocab_size: int) -> tuple[int, ...]:
    if value is None:
        return ()
    ids = fields.items(value, "stop_token_ids", limits.max_stop_token_ids)
    return tuple(fields.integer(token, "stop_token_ids", 0, vocab_size - 1) for token in ids)


def _name(value: Any, field: str, max_chars: int) -> str:
    return "" if value is None else fields.string(value, field, max_chars=max_chars, empty=False)


def _target(value: Any, field: str) -> float | None:
    return None if value is None else fields.number(value, field, 0.0, MAX_TARGET_S, above=True)


def _optional_integer(value: Any, field: str, low: int, high: int) -> int | None:
    return None if value is None else fields.integer(value, field, low, high)


def _number(
    value: Any, field: str, low: float, high: float, default: float, *, above: bool = False
) -> float:
    return default if value is None else fields.number(value, field, low, high, above=above)


def _default(value: int | None, default: int) -> int:
    return default if value is None else value
