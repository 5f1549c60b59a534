"""Writing new keys and values into the paged cache."""

from __future__ import annotations

from cadenza.kernels.kv_write.reference import kv_write_reference as kv_write

__all__ = ["kv_write"]
