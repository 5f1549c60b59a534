"""Checks of what favours and forbids tokens: biases, allowed ids, bad words, the least length."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from cadenza.service import fields
from cadenza.service.errors import InvalidRequest
from cadenza.service.limits import Limits
from cadenza.service.request import GenerationRequest
from cadenza.wire.arrays import pack_ids, view_ids
from cadenza.wire.messages import Sampling

MAX_BIAS = 100.0
_INT32 = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """What ends a choice before its length does."""

    token_ids: Collection[int]  # the model's own, unless they are ignored, and the request's
    min_tokens: int


def constraints(
    request: GenerationRequest, limits: Limits, vocab_size: int, ending: Ending
) -> dict[str, Any]:
    """The fields of `Sampling` that the request's biases, allowed ids and least length give.

    Raises:
        InvalidRequest: names the field that is wrong.
    """
    biases = _logit_bias(request.logit_bias, limits.max_logit_bias, vocab_size)
    biases = dict(sorted(biases.items()))
    allowed = _allowed(request.allowed_token_ids, vocab_size)
    is_delayed = ending.min_tokens > 0 and len(ending.token_ids) > 0
    if is_delayed and len(allowed) and np.isin(allowed, list(ending.token_ids)).all():
        raise InvalidRequest(
            "allowed_token_ids has only tokens that end the answer, which min_tokens forbids.",
            "allowed_token_ids",
        )
    return {
        "bias_ids": pack_ids(biases),  # sorted: JSON has an order of its own, protobuf none
        "biases": np.array(list(biases.values()), dtype="<f4").tobytes(),
        "allowed_ids": pack_ids(allowed),
        "min_tokens": ending.min_tokens if is_delayed else 0,
        "ending_ids": tuple(sorted(ending.token_ids)) if is_delayed else (),
    }


def check_min_tokens(value: Any, max_tokens: int | None) -> int:
    """The least number of tokens, 0 where there is none.

    Raises:
        InvalidRequest: it is no number of tokens, or more than `max_tokens`.
    """
    min_tokens = 0 if value is None else fields.integer(value, "min_tokens", 0, _INT32)
    if max_tokens is not None and min_tokens > max_tokens:
        raise InvalidRequest("min_tokens must be at most max_tokens.", "min_tokens")
    return min_tokens


def check_bad_words(value: Any, limits: Limits) -> tuple[str, ...]:
    """The words; a single text is one word.

    Raises:
        InvalidRequest: too many of them, or one that is empty, too long or no text.
    """
    if value is None:
        return ()
    words = fields.items(
        [value] if isinstance(value, str) else value, "bad_words", limits.max_bad_words
    )
    return tuple(
        fields.string(word, "bad_words", max_chars=limits.max_bad_word_chars, empty=False)
        for word in words
    )


def with_bad_words(sampling: Sampling, words: Sequence[Sequence[int]], vocab_size: int) -> Sampling:
    """The settings with `words`, as ids, that must not come.

    Raises:
        InvalidRequest: a word without tokens, or words that may leave no token to draw.
    """
    if not all(words):
        raise InvalidRequest("bad_words has a word without tokens.", "bad_words")
    # a tokenizer may have tokens that the model does not, which never come anyway
    words = [word for word in words if max(word) < vocab_size]
    forbidden = {word[-1] for word in words}.union(sampling.ending_ids)
    allowed = view_ids(sampling.allowed_ids)
    is_none_left = (
        np.isin(allowed, list(forbidden)).all() if len(allowed) else len(forbidden) >= vocab_size
    )
    if is_none_left:
        raise InvalidRequest(
            "bad_words may leave none of the tokens that are allowed.", "bad_words"
        )
    distinct = dict.fromkeys(tuple(word) for word in words)
    return msgspec.structs.replace(sampling, bad_words=tuple(distinct))


def _logit_bias(value: Any, max_items: int, vocab_size: int) -> dict[int, float]:
    """Token id -> what is added to its logit. In JSON the ids are texts."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidRequest("logit_bias must be an object.", "logit_bias")
    if len(value) > max_items:
        raise InvalidRequest(f"logit_bias must have at most {max_items} entries.", "logit_bias")
    return {
        _bias_id(key, vocab_size): fields.number(bias, "logit_bias", -MAX_BIAS, MAX_BIAS)
        for key, bias in value.items()
    }


def _bias_id(key: Any, vocab_size: int) -> int:
    if isinstance(key, str) and key.isdecimal() and key.isascii() and len(key) < 11:
        token = int(key)
        if key == str(token) and token < vocab_size:  # "05" and "5" would be one token
            return token
    elif type(key) is int and 0 <= key < vocab_size:
        return key
    raise InvalidRequest(
        f"logit_bias must have token ids between 0 and {vocab_size - 1} as its keys.", "logit_bias"
    )


def _allowed(value: Any, vocab_size: int) -> npt.NDArray[np.int64]:
    """The ids in order, each once; a whole vocabulary is looked at in a few milliseconds."""
    name = "allowed_token_ids"
    if value is None:
        return np.empty(0, dtype=np.int64)
    ids = fields.items(value, name, vocab_size)
    if not ids:
        raise InvalidRequest(f"{name} must not be empty.", name)
    if set(map(type, ids)) != {int}:
        raise InvalidRequest(f"{name} must be integers.", name)
    try:
        found = np.unique(np.fromiter(ids, dtype=np.int64, count=len(ids)))
    except OverflowError:  # beyond int64
        found = np.array([-1])
    if found[0] < 0 or found[-1] >= vocab_size:
        raise InvalidRequest(f"{name} must be between 0 and {vocab_size - 1}.", name)
    return found
