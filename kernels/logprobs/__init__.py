"""Log-probabilities of a token and of the best ones, from raw logits, for those rows that ask."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from cadenza.kernels.logprobs import native
from cadenza.kernels.logprobs.reference import RowLogprobs, logprobs_reference

__all__ = ["RowLogprobs", "logprobs", "logprobs_reference"]


def logprobs(
    logits: Tensor, rows: Sequence[int], tokens: Sequence[int], counts: Sequence[int]
) -> list[RowLogprobs]:
    """Return for each of `rows` the log-probability of a token, and of its best `counts`.

    logits: [all rows, vocab_size] fp32; in `rows` are none that have NaN or +inf, or nothing above
    -inf. rows, tokens, counts: alike long. Raises MemoryError.
    """
    if native.is_supported(logits):
        return native.logprobs(logits, rows, tokens, counts)
    return logprobs_reference(logits, rows, tokens, counts)
