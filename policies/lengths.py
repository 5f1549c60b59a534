"""How long outputs become, learned online from requests that finished. For policies to share."""

from __future__ import annotations

import numpy as np

from cadenza.policies.views import FloatArray, IntArray, RequestColumns

_TENANTS = 64  # told apart; further ones share their places
_PROMPTS = _LIMITS = 24  # by powers of two
_DECAY = 0.995  # weight of what was learned, at each further request of its kind
_SHRINKAGE = 8.0  # requests of a kind that count as much as all requests together
_MOST_AT_ONCE = 1024  # finished requests of one step that are learned from


class LengthPredictor:
    """Mean output length of requests of a kind, drawn towards that of all.

    A kind is a tenant, a power of two of prompt tokens, and one of `max_tokens`. A request's own
    `predicted_tokens`, as the hook `predict_lengths` sets them, go before; nobody generates more
    than `max_tokens`. Before anything has finished, everybody is expected to use all of it.
    """

    def __init__(self) -> None:
        kinds = _TENANTS * _PROMPTS * _LIMITS
        self._sums, self._weights = np.zeros(kinds), np.zeros(kinds)
        self._sum = self._weight = 0.0

    @property
    def has_learned(self) -> bool:
        """Whether anything has finished."""
        return self._weight > 0

    def learn(self, finished: RequestColumns) -> None:
        """Take in how long finished requests became; those that never generated say nothing."""
        kinds, lengths = _kinds(finished), finished.generated_tokens
        pairs = zip(kinds.tolist(), lengths.tolist(), strict=True)
        for kind, length in list(pairs)[-_MOST_AT_ONCE:]:
            if length > 0:
                self._sums[kind] = _DECAY * self._sums[kind] + length
                self._weights[kind] = _DECAY * self._weights[kind] + 1
                self._sum = _DECAY * self._sum + length
                self._weight = _DECAY * self._weight + 1

    def total(self, requests: RequestColumns) -> FloatArray:
        """Output tokens in all that each request is expected to have; at least 1."""
        limits = requests.max_tokens
        if self.has_learned:
            kinds = _kinds(requests)
            prior = _SHRINKAGE * self._sum / self._weight
            expected = (self._sums[kinds] + prior) / (self._weights[kinds] + _SHRINKAGE)
        else:
            expected = limits.astype(np.float64)
        said = requests.predicted_tokens
        expected = np.where(said > 0, said, expected)
        total: FloatArray = np.maximum(np.minimum(expected, limits), 1.0)
        return total

    def remaining(self, requests: RequestColumns) -> FloatArray:
        """Output tokens that each request is expected to generate yet; at least 1.

        One that has outgrown its prediction is expected to grow by as much as it outgrew it, at
        most to `max_tokens`.
        """
        generated = requests.generated_tokens
        more = np.abs(self.total(requests) - generated)
        left: FloatArray = np.maximum(np.minimum(more, requests.max_tokens - generated), 1.0)
        return left


def _kinds(requests: RequestColumns) -> IntArray:
    prompts = _power(requests.prompt_tokens, _PROMPTS)
    limits = _power(requests.max_tokens, _LIMITS)
    kinds: IntArray = (requests.tenant % _TENANTS * _PROMPTS + prompts) * _LIMITS + limits
    return kinds


def _power(counts: IntArray, powers: int) -> IntArray:
    """The power of two that each count has reached, below `powers`."""
    _, exponents = np.frexp(counts.astype(np.float64))
    return np.minimum(exponents.astype(np.int64), powers - 1)
