"""The gated activation of GeGLU."""

from __future__ import annotations

from cadenza.kernels.gelu_mul.reference import gelu_mul_reference as gelu_mul

__all__ = ["gelu_mul"]
