"""Sampling in plain torch: this is the specification.

Filters apply in transformers' order: temperature, top-k, top-p, min-p; then the largest of logit +
Gumbel noise is taken, which is a sample of the softmax over the kept tokens. Ties go to the lowest
id everywhere. A row's token does not depend on the other rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from cadenza.kernels.philox import gumbel_noise, gumbel_noise_at
from cadenza.kernels.sampling.settings import Int32Array, Setting, SettingsArray

_CANDIDATES = (256, 4096)  # sorted before a top-p filter asks for the whole vocabulary


def sample_reference(
    logits: Tensor, settings: SettingsArray, shaped: Mapping[int, Tensor]
) -> Int32Array:
    """Return a token for each row of logits [rows, vocab_size], as `sample` does."""
    # NaN wins any maximum, and the maximum is -inf only where no token is left
    failed = ~np.isfinite(logits.amax(dim=-1).cpu().numpy())
    tokens = logits.argmax(dim=-1).cpu().numpy().astype(np.int32)
    for row, values in shaped.items():
        failed[row] |= not math.isfinite(values.max())
        tokens[row] = int(values.argmax())
    for row in np.flatnonzero((settings["temperature"] > 0) & ~failed).tolist():
        tokens[row] = _drawn(shaped.get(row, logits[row]), settings[row])
    tokens[failed] = -1
    return tokens


def _best(values: Tensor, count: int) -> Tensor:
    """Return the ids of the `count` largest values, best first, equal ones by id."""
    least = values.topk(count).values[-1]
    candidates = torch.nonzero(values >= least).squeeze(1)
    order = values.index_select(0, candidates).argsort(descending=True, stable=True)
    return candidates.index_select(0, order[:count])


def _drawn(logits: Tensor, setting: Setting) -> int:
    """Return the token of one row [vocab_size] with finite maximum."""
    # the maximum first, so that no temperature can overflow
    scaled = (logits - logits.max()).div_(float(setting["temperature"]))
    kept = _kept(scaled, setting)
    if kept is None:
        return int((scaled + _noise(setting, scaled, None)).argmax())
    scores = scaled.index_select(0, kept) + _noise(setting, scaled, kept)
    winners = kept[scores == scores.max()]
    return int(winners.min())


def _noise(setting: Setting, scaled: Tensor, kept: Tensor | None) -> Tensor:
    """Return the Gumbel noise of the kept tokens, or of all [vocab_size].

    Row by row: a row's ten rounds then stay in the processor's cache.
    """
    # a seed is unsigned; its bits travel as a signed int64
    name = (setting["seed"].view(np.int64), setting["position"], setting["choice"])
    seeds, positions, choices = torch.tensor(
        [[int(part)] for part in name], device=scaled.device
    ).unbind()
    if kept is None:
        return gumbel_noise(seeds, positions, choices, len(scaled)).squeeze(0)
    return gumbel_noise_at(seeds, positions, choices, kept.unsqueeze(0)).squeeze(0)


def _kept(scaled: Tensor, setting: Setting) -> Tensor | None:
    """Return the ids of the tokens that the filters keep, at least one; None: all of them.

    scaled: [vocab_size], logits over temperature, the largest 0.
    """
    size = len(scaled)
    top_k = int(setting["top_k"]) if 0 < setting["top_k"] < size else size
    top_p, min_p = float(setting["top_p"]), float(setting["min_p"])
    kept = None
    if top_p < 1.0:
        kept = _top_p(scaled, top_k, top_p)
    elif top_k < size:
        kept = _best(scaled, top_k)
    if min_p <= 0.0:
        return kept
    # p >= min_p * largest p; the largest logit is 0
    least = math.log(min(min_p, 1.0))
    if kept is None:
        return torch.nonzero(scaled >= least).squeeze(1)
    return kept[scaled.index_select(0, kept) >= least]


def _top_p(scaled: Tensor, top_k: int, top_p: float) -> Tensor:
    """Return the fewest best tokens of the top k whose probabilities reach `top_p`."""
    if top_k < len(scaled):
        ids = _best(scaled, top_k)
        return _reaching(ids, _softmax(scaled.index_select(0, ids)), top_p)
    probabilities = _softmax(scaled)
    for count in _CANDIDATES:
        ids = _best(scaled, min(count, len(scaled)))
        kept = _reaching(ids, probabilities.index_select(0, ids), top_p)
        if len(kept) < len(ids):
            return kept
    ids = _best(scaled, len(scaled))
    return _reaching(ids, probabilities.index_select(0, ids), top_p)


def _softmax(values: Tensor) -> Tensor:
    # as one row of a matrix: sums of a long vector would be split by the number of threads
    return torch.softmax(values.unsqueeze(0), dim=-1).squeeze(0)


def _reaching(ids: Tensor, probabilities: Tensor, top_p: float) -> Tensor:
    """Return the ids, best first, up to the first where the sum reaches `top_p`."""
    probabilities = probabilities.double()
    before = probabilities.cumsum(0) - probabilities
    return ids[: max(1, int((before < top_p).sum()))]
