"""Log-probabilities in plain torch: this is the specification, and what other devices use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


class RowLogprobs(NamedTuple):
    """Of one row."""

    sampled: float
    top_ids: npt.NDArray[np.int32]  # [count, at most vocab_size], best first, equal ones by id
    top_logprobs: npt.NDArray[np.float32]  # as many


def logprobs_reference(
    logits: Tensor, rows: Sequence[int], tokens: Sequence[int], counts: Sequence[int]
) -> list[RowLogprobs]:
    """Return the log-probabilities that are asked for, as `logprobs` does."""
    if not len(rows):
        return []
    chosen = logits.index_select(0, torch.tensor(rows, device=logits.device))
    values = torch.log_softmax(chosen, dim=-1)
    targets = torch.tensor(tokens, device=logits.device).unsqueeze(1)
    sampled = values.gather(1, targets).squeeze(1).tolist()
    best = _best(chosen, min(max(counts), chosen.shape[1]))
    ids, top = best.cpu().numpy().astype(np.int32), values.gather(1, best).cpu().numpy()
    return [
        RowLogprobs(sampled[row], ids[row, :count], top[row, :count])
        for row, count in enumerate(counts)
    ]


def _best(logits: Tensor, count: int) -> Tensor:
    """Return the ids of the `count` largest of each row, best first, equal ones by id."""
    if count == 0:
        return torch.empty((len(logits), 0), dtype=torch.int64, device=logits.device)
    least = logits.topk(count, dim=-1).values[:, -1:]
    rows, ids = torch.nonzero(logits >= least, as_tuple=True)
    # By value within each row: two stable sorts, the last one deciding
    order = logits[rows, ids].argsort(descending=True, stable=True)
    order = order[rows[order].argsort(stable=True)]
    rows, ids = rows[order], ids[order]
    counts = torch.bincount(rows, minlength=len(logits))
    firsts = counts.cumsum(0) - counts
    return ids[firsts.unsqueeze(1) + torch.arange(count, device=logits.device)]
