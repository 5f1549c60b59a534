"""Weights of eight bits: by a row's scale its largest value becomes the largest code."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

_LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}


class QuantisedWeight(NamedTuple):
    """Stands for codes · scales."""

    codes: Tensor  # [out_features, in_features] int8 or float8_e4m3fn
    scales: Tensor  # [out_features] fp32


def quantise(weight: Tensor, dtype: torch.dtype) -> QuantisedWeight:
    """Round a weight [out_features, in_features] to int8 or float8_e4m3fn, the nearest code each.

    Raises ValueError for another dtype, and for a weight that is not finite.
    """
    if dtype not in _LARGEST:
        raise ValueError(f"weights are quantised to int8 or float8_e4m3fn, not {dtype}")
    weight = weight.float()
    largest = weight.abs().amax(dim=1)
    if not largest.isfinite().all():
        raise ValueError("a weight that is not finite cannot be quantised")
    scales = largest / _LARGEST[dtype]
    # zeros, and what is too small for fp32 to have its scale, become zeros, which have any
    scales = torch.where(scales > 0, scales, 1.0)
    codes = (weight / scales.unsqueeze(1)).clamp_(-_LARGEST[dtype], _LARGEST[dtype])
    return QuantisedWeight((codes.round_() if dtype == torch.int8 else codes).to(dtype), scales)
