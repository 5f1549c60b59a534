"""Philox-4x32-10 in plain torch: this is the specification.

Ten rounds of two 32x32-bit products on a counter of four words under a key of two.
Source: Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC11, and Random123 1.14,
whose known answers the tests use.
"""

from __future__ import annotations

from torch import Tensor

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10

Words = tuple[Tensor, Tensor, Tensor, Tensor]


def philox_4x32_10(counter: Words, key: tuple[Tensor, Tensor]) -> Words:
    """Return four random words for each counter and key, all int64 holding 32 unsigned bits.

    The six tensors broadcast against each other.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        high0, low0 = _multiply(c0, _MULTIPLIERS[0])
        high1, low1 = _multiply(c2, _MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + _KEY_STEPS[0]) & _MASK, (k1 + _KEY_STEPS[1]) & _MASK
    return c0, c1, c2, c3


def _multiply(word: Tensor, multiplier: int) -> tuple[Tensor, Tensor]:
    """Return the high and the low word of a product; int64 wraps, its bits are right."""
    product = word * multiplier
    return (product >> 32) & _MASK, product & _MASK
