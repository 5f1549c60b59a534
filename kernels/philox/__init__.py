"""Counter-based random numbers: a number is a function of its name, with no state to keep."""

from __future__ import annotations

from cadenza.kernels.philox.gumbel import gumbel_noise, gumbel_noise_at
from cadenza.kernels.philox.reference import philox_4x32_10

__all__ = ["gumbel_noise", "gumbel_noise_at", "philox_4x32_10"]
