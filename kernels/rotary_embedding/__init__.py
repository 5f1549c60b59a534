"""Rotary position embedding, half-rotated as in transformers' Llama."""

from __future__ import annotations

from torch import Tensor

from cadenza.kernels.rotary_embedding.reference import rotary_embedding_reference
from cadenza.kernels.rotary_embedding.tables import RotaryTables, rotary_tables
from cadenza.kernels.triton_backend import uses_triton

__all__ = ["RotaryTables", "rotary_embedding", "rotary_embedding_reference", "rotary_tables"]


def rotary_embedding(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate x [tokens, heads, head_dim] by the tables' rows of its tokens; same dtype."""
    if uses_triton(x.device):
        from cadenza.kernels.rotary_embedding.triton import rotary_embedding_triton

        return rotary_embedding_triton(x, cos, sin)
    return rotary_embedding_reference(x, cos, sin)
