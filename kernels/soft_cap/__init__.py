"""Bounds that values approach and never pass."""

from __future__ import annotations

from cadenza.kernels.soft_cap.reference import soft_capped_

__all__ = ["soft_capped_"]
