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
    calls = torch.arange(-(-num_draws // 4), device=seeds.device).unsqueeze(0)
    words = _words(seeds, positions, choices, calls)
    return _gumbel(words.flatten(1)[:, :num_draws])


def gumbel_noise_at(seeds: Tensor, positions: Tensor, choices: Tensor, draws: Tensor) -> Tensor:
    """Return the noise of some draws, [rows, n] int64, as `gumbel_noise` would."""
    words = _words(seeds, positions, choices, draws // 4)
    return _gumbel(words.gather(2, (draws % 4).unsqueeze(2)).squeeze(2))


def _words(seeds: Tensor, positions: Tensor, choices: Tensor, calls: Tensor) -> Tensor:
    """Return the four words of each Philox call, [rows, calls, 4] int64."""
    words = philox_4x32_10(
        (positions.unsqueeze(1), choices.unsqueeze(1), calls, torch.zeros_like(calls)),
        ((seeds & 0xFFFFFFFF).unsqueeze(1), ((seeds >> 32) & 0xFFFFFFFF).unsqueeze(1)),
    )
    return torch.stack(words, dim=-1)


def _gumbel(words: Tensor) -> Tensor:
    uniform = words.float().add_(0.5).mul_(2.0**-32).clamp_(max=_BELOW_ONE)
    # fp32 is fine near 0 and coarse near 1: this form puts the likely winners near 0
    return uniform.neg_().log1p_().neg_().log_().neg_()
