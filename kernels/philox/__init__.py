"""Counter-based random numbers: a number is a function of its name, with no state to keep."""

from __future__ import annotations

from cadenza.kernels.philox.gumbel import gumbel_noise
from cadenza.kernels.philox.reference import philox_4x32_10

__all__ = ["gumbel_noise", "philox_4x32_10"]
