"""Rotary position embedding, half-rotated as in transformers' Llama."""

from __future__ import annotations

from cadenza.kernels.rotary_embedding.reference import (
    rotary_embedding_reference as rotary_embedding,
)
from cadenza.kernels.rotary_embedding.tables import RotaryTables, rotary_tables

__all__ = ["RotaryTables", "rotary_embedding", "rotary_tables"]
