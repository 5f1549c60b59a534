"""The gated activation of SwiGLU."""

from __future__ import annotations

from cadenza.kernels.silu_mul.reference import silu_mul_reference as silu_mul

__all__ = ["silu_mul"]
