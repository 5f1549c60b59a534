"""Settings as Triton's kernels read them: a column each, of the type that they compute in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cadenza.kernels.sampling.settings import SettingsArray


class Columns(NamedTuple):
    """On the device, [rows] each."""

    seeds: Tensor  # int64, the bits of what is unsigned, as the next two
    positions: Tensor  # int32
    choices: Tensor  # int32
    top_ks: Tensor  # int32
    temperatures: Tensor  # fp32
    leasts: Tensor  # fp32, log(min_p): of what is scaled, the largest being 0
    top_ps: Tensor  # fp64
    has_cuts: bool  # whether top-k or top-p filters any row


class HostColumns(NamedTuple):
    """Before the device knows of them."""

    arrays: tuple[npt.NDArray[Any], ...]  # as the tensors of `Columns`
    has_cuts: bool

    def on_device(self, tensors: Sequence[Tensor]) -> Columns:
        """Return them, given the arrays on the device."""
        seeds, positions, choices, top_ks, temperatures, leasts, top_ps = tensors
        return Columns(
            seeds, positions, choices, top_ks, temperatures, leasts, top_ps, self.has_cuts
        )

    def sent(self, device: torch.device) -> Columns:
        """Send each array by itself."""
        return self.on_device([torch.from_numpy(array).to(device) for array in self.arrays])


def columns_of(settings: SettingsArray, vocab_size: int) -> HostColumns:
    """Return the columns of settings [rows]."""
    draws = settings["temperature"] > 0
    has_top_k = (settings["top_k"] > 0) & (settings["top_k"] < vocab_size)
    # p >= min_p * largest p; the largest scaled logit is 0
    with np.errstate(divide="ignore"):
        leasts = np.log(np.minimum(settings["min_p"], 1.0))
    columns = (
        settings["seed"].view(np.int64),
        settings["position"].view(np.int32),
        settings["choice"].view(np.int32),
        settings["top_k"],
        settings["temperature"].astype(np.float32),
        leasts.astype(np.float32),
        settings["top_p"],
    )
    return HostColumns(
        tuple(map(np.ascontiguousarray, columns)),
        bool((draws & (has_top_k | (settings["top_p"] < 1.0))).any()),
    )
