"""Log-probabilities in plain torch: this is the specification, and what other devices use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cadenza.kernels.sampling import best


class RowLogprobs(NamedTuple):
    """Of one row."""

    sampled: float
    top_ids: npt.NDArray[np.int32]  # [count, at most vocab_size], best first, equal ones by id
    top_logprobs: npt.NDArray[np.float32]  # as many


def logprobs_reference(
    logits: Tensor, rows: Sequence[int], tokens: Sequence[int], counts: Sequence[int]
) -> list[RowLogprobs]:
    """Return the log-probabilities that are asked for, as `logprobs` does."""
    return [
        _of_row(logits[row], token, min(count, logits.shape[1]))
        for row, token, count in zip(rows, tokens, counts, strict=True)
    ]


def _of_row(logits: Tensor, token: int, count: int) -> RowLogprobs:
    # as one row of a matrix: sums of a long vector would be split by the number of threads
    values = torch.log_softmax(logits.unsqueeze(0), dim=-1).squeeze(0)
    ids = best(logits, count) if count else torch.empty(0, dtype=torch.int64)
    top = values.index_select(0, ids.to(values.device))
    return RowLogprobs(
        sampled=float(values[token]),
        top_ids=ids.cpu().numpy().astype(np.int32),
        top_logprobs=top.cpu().numpy(),
    )
