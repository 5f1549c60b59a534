"""Root mean square normalisation of each row."""

from __future__ import annotations

from cadenza.kernels.rms_norm.reference import rms_norm_reference as rms_norm

__all__ = ["rms_norm"]
