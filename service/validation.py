"""From a client's request to checked values. Knows no model: `Generator` checks lengths."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cadenza.service import fields
from cadenza.service.constraints import Ending, check_bad_words, check_min_tokens, constraints
from cadenza.service.errors import InvalidRequest
from cadenza.service.limits import Limits
from cadenza.service.messages import check_messages
from cadenza.service.request import GenerationRequest
from cadenza.wire.messages import Ready, Sampling

INT32 = 2**31 - 1
INT64 = 2**63 - 1
MAX_TEMPERATURE = 100.0
# Below this the softmax is one-hot in float32, or overflows: it is greedy by another name
_GREEDY_BELOW = 1e-5
# vLLM takes whatever is above 0, but logits must stay finite when they are divided by it
MIN_REPETITION_PENALTY = 0.01
MAX_REPETITION_PENALTY = 100.0
MAX_TARGET_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """Exactly one of the first three is set."""

    text: str | None = None
    token_ids: Sequence[int] | None = None
    messages: Sequence[Mapping[str, Any]] | None = None
    add_special_tokens: bool = True  # before a text

    @property
    def field(self) -> str:
        """The client's name for it."""
        return "messages" if self.messages is not None else "prompt"

    @property
    def num_chars(self) -> int:
        """Characters to encode; none for token ids."""
        contents = (message["content"] for message in self.messages or ())
        return len(self.text or "") + sum(map(len, contents))


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedRequest:
    """A request whose values are all in range, defaults filled in."""

    prompt: Prompt
    max_tokens: int | None  # None: the rest of the context
    sampling: Sampling  # without bad words, which have no ids yet
    bad_words: tuple[str, ...]
    num_choices: int
    stops: tuple[str, ...]
    min_tokens: int  # before a choice may end
    stop_token_ids: tuple[int, ...]
    ignore_eos: bool
    priority: int
    cache_salt: str
    tenant: str
    ttft_target_s: float | None
    tpot_target_s: float | None
    deadline_s: float | None


def check(request: GenerationRequest, limits: Limits, engine: Ready) -> CheckedRequest:
    """Check every field but the model's name, and the lengths of what is yet to be encoded.

    Raises:
        InvalidRequest: names the first field that is wrong.
    """
    max_tokens = _optional_integer(request.max_tokens, "max_tokens", 1, INT32)
    min_tokens = check_min_tokens(request.min_tokens, max_tokens)
    stop_token_ids = _stop_token_ids(request.stop_token_ids, limits, engine.vocab_size)
    ignore_eos = request.ignore_eos is not None and fields.flag(request.ignore_eos, "ignore_eos")
    eos = () if ignore_eos else engine.eos_token_ids
    ending = Ending(token_ids={*stop_token_ids, *eos}, min_tokens=min_tokens)
    return CheckedRequest(
        prompt=_prompt(request, limits, engine),
        max_tokens=max_tokens,
        sampling=_sampling(request, limits, engine.vocab_size, ending),
        bad_words=check_bad_words(request.bad_words, limits),
        num_choices=_default(_optional_integer(request.n, "n", 1, limits.max_choices), 1),
        stops=_stops(request.stop, limits),
        min_tokens=min_tokens,
        stop_token_ids=stop_token_ids,
        ignore_eos=ignore_eos,
        priority=_default(_optional_integer(request.priority, "priority", -INT32 - 1, INT32), 0),
        cache_salt=_name(request.cache_salt, "cache_salt", limits.max_salt_chars),
        tenant=_name(request.tenant, "tenant", limits.max_tenant_chars),
        ttft_target_s=_target(request.ttft_target_s, "ttft_target_s"),
        tpot_target_s=_target(request.tpot_target_s, "tpot_target_s"),
        deadline_s=request.deadline_s,
    )


def _prompt(request: GenerationRequest, limits: Limits, engine: Ready) -> Prompt:
    given = (request.text, request.token_ids, request.messages)
    if sum(value is not None for value in given) != 1:
        raise InvalidRequest("Exactly one of a prompt and messages must be given.", "prompt")
    if request.text is not None:
        text = fields.string(request.text, "prompt", empty=False)
        return Prompt(text=text, add_special_tokens=_add_special_tokens(request, True))
    if request.token_ids is not None:
        return Prompt(token_ids=_token_ids(request.token_ids, engine))
    if _add_special_tokens(request, False):
        raise InvalidRequest("A chat's template adds them itself.", "add_special_tokens")
    return Prompt(messages=check_messages(request.messages, limits.max_messages))


def _add_special_tokens(request: GenerationRequest, default: bool) -> bool:
    value = request.add_special_tokens
    return default if value is None else fields.flag(value, "add_special_tokens")


def _token_ids(value: Any, engine: Ready) -> Sequence[int]:
    ids = fields.items(value, "prompt", INT32)
    if not ids:
        raise InvalidRequest("prompt must not be empty.", "prompt")
    refuse_overlong(len(ids), engine.max_model_len, "prompt")  # before looking at each
    return token_ids(ids, "prompt", INT32, engine.vocab_size)


def token_ids(value: Any, field: str, max_items: int, vocab_size: int) -> Sequence[int]:
    """A list of at most `max_items` ids of the vocabulary.

    Raises:
        InvalidRequest: it is none; names the first element that is wrong.
    """
    ids = fields.items(value, field, max_items)
    for index, token in enumerate(ids):
        if type(token) is not int or not 0 <= token < vocab_size:
            raise InvalidRequest(
                f"{field}[{index}] must be a token id between 0 and {vocab_size - 1}.", field
            )
    return ids


def refuse_overlong(prompt_tokens: int, max_model_len: int, field: str) -> None:
    """A prompt must leave room for one token at least.

    Raises:
        InvalidRequest: it does not.
    """
    if prompt_tokens >= max_model_len:
        raise InvalidRequest(
            f"The prompt has {prompt_tokens} tokens, which leaves no room in the model's "
            f"context of {max_model_len} tokens.",
            field,
        )


def _sampling(
    request: GenerationRequest, limits: Limits, vocab_size: int, ending: Ending
) -> Sampling:
    temperature = _number(request.temperature, "temperature", 0.0, MAX_TEMPERATURE, 1.0)
    return Sampling(
        temperature=0.0 if temperature < _GREEDY_BELOW else temperature,
        top_k=_top_k(request.top_k),
        top_p=_number(request.top_p, "top_p", 0.0, 1.0, 1.0, above=True),
        min_p=_number(request.min_p, "min_p", 0.0, 1.0, 0.0),
        presence_penalty=_number(request.presence_penalty, "presence_penalty", -2.0, 2.0, 0.0),
        frequency_penalty=_number(request.frequency_penalty, "frequency_penalty", -2.0, 2.0, 0.0),
        repetition_penalty=_number(
            request.repetition_penalty,
            "repetition_penalty",
            MIN_REPETITION_PENALTY,
            MAX_REPETITION_PENALTY,
            1.0,
        ),
        seed=_seed(request.seed),
        logprobs=_optional_integer(request.logprobs, "logprobs", 0, limits.max_logprobs),
        **constraints(request, limits, vocab_size, ending),
    )


def _top_k(value: Any) -> int:
    top_k = _default(_optional_integer(value, "top_k", -1, INT32), 0)
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
