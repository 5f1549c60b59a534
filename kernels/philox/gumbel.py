"""Gumbel noise named by (seed, position, choice, draw).

The key is the 64-bit seed, low word first. The counter is (position, choice, draw // 4, 0): one
Philox call serves four neighbouring draws, and draw d takes word d % 4.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cadenza.kernels.philox.reference import philox_4x32_10

_BELOW_ONE = 1.0 - 2.0**-24  # the largest fp32 below 1


def gumbel_noise(seeds: Tensor, positions: Tensor, choices: Tensor, num_draws: int) -> Tensor:
    """Return standard Gumbel noise [rows, num_draws], fp32, for draws 0 to num_draws - 1.

    seeds (64 bits, as int64), positions and choices (32 bits): [rows] int64.
    """
    calls = torch.arange(-(-num_draws // 4), device=seeds.device)
    words = philox_4x32_10(
        (
            positions.unsqueeze(1),
            choices.unsqueeze(1),
            calls.unsqueeze(0),
            torch.zeros_like(calls).unsqueeze(0),
        ),
        ((seeds & 0xFFFFFFFF).unsqueeze(1), ((seeds >> 32) & 0xFFFFFFFF).unsqueeze(1)),
    )
    uniform = torch.stack(words, dim=-1).flatten(1)[:, :num_draws].float()
    uniform = uniform.add_(0.5).mul_(2.0**-32).clamp_(max=_BELOW_ONE)
    # fp32 is fine near 0 and coarse near 1: this form puts the likely winners near 0
    return uniform.neg_().log1p_().neg_().log_().neg_()
